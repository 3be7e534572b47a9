package main

import "testing"

func TestProcessors(t *testing.T) {
	for _, tt := range []struct {
		asked     string
		all, want int
	}{
		{"", 1, 1}, {"", 2, 1}, {"", 3, 1}, {"", 8, 4}, {"6", 6, 6}, {"0", 8, 4}, {"-1", 8, 4}, {"many", 8, 4},
	} {
		if got := processors(tt.asked, tt.all); got != tt.want {
			t.Errorf("processors(%q, %d) = %d; want %d", tt.asked, tt.all, got, tt.want)
		}
	}
}
