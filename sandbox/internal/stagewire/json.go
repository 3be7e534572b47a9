package stagewire

import (
	"github.com/go-json-experiment/json"
)

// Marshal encodes v; a string that is not UTF-8 is an error.
func Marshal(v any) ([]byte, error) { return json.Marshal(v, json.Deterministic(true)) }

// Unmarshal decodes b strictly: names are case-sensitive, unknown and duplicate
// names and invalid UTF-8 are errors.
func Unmarshal(b []byte, v any) error {
	return json.Unmarshal(b, v, json.RejectUnknownMembers(true))
}
