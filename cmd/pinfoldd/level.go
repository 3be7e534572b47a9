package main

import (
	"log/slog"
	"slices"
)

// level is how much is logged: PINFOLD_LOG=debug in the environment adds how long
// each step of a spawn took.
func level(env []string) slog.Level {
	if slices.Contains(env, "PINFOLD_LOG=debug") {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
