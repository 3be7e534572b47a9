package policy

import "strings"

// nearest returns the word of the list with the smallest edit distance to
// name; empty when none is near enough to be a slip of the pen.
func nearest(name string, words []string) string {
	if name == "" || len(name) > 256 {
		return ""
	}
	best, bestDistance := "", 1+max(1, min(3, len(name)/3))
	for _, w := range words {
		if w == name || len(w) > 256 {
			continue
		}
		dist := distance(strings.ToLower(name), strings.ToLower(w))
		if dist < bestDistance {
			best, bestDistance = w, dist
		}
	}
	return best
}

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func distance(a, b string) int {
	before, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
		before, previous, current = previous, current, before
	}
	return previous[len(b)]
}

// nearestHint is nearest as the hint of a problem.
func nearestHint(name string, words []string) string {
	if n := nearest(name, words); n != "" {
		return "did you mean " + n + "?"
	}
	return "known: " + strings.Join(words, ", ")
}
