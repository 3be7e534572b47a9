package main

import (
	"log/slog"
	"slices"
	"strconv"
)

// level is how much is logged: PINFOLD_LOG=debug in the environment adds how long
// each step of a spawn took.
func level(env []string) slog.Level {
	if slices.Contains(env, "PINFOLD_LOG=debug") {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// processors is how many of all the daemon's own goroutines run on. Half of them are for what
// it starts, the stage first of all, unless somebody asked for a number, which the runtime
// has obeyed.
func processors(asked string, all int) int {
	if n, err := strconv.Atoi(asked); err == nil && n > 0 {
		return all
	}
	return max(1, all/2)
}
