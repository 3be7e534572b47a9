package proto_test

import (
	"encoding/json"
	"testing"

	"pinfold/proto"
)

func TestDigestIsOfTheContentAlone(t *testing.T) {
	const spawn = `"type":"proc/spawn/req","cmd":["a","b"],"env":{"X":"1","Y":"2"}`
	for _, c := range []struct {
		one, other string
		same       bool
	}{
		{spawn + `,"id":"1","ts":1,"op_id":"o"`, spawn + `,"id":"2","ts":2,"op_id":"p","session_id":"s"`, true},
		{spawn, `"type":"proc/spawn/req","env":{"Y":"2","X":"1"},"cmd":["a","b"],"stdin_mode":"pipe","timeout":0,"labels":[],"limits":{}`, true},
		{spawn, spawn + `,"timeout":1`, false},
		{spawn, spawn + `,"cwd":"/"`, false},
		{spawn, spawn + `,"stdin_mode":"null"`, false},
		{spawn, spawn + `,"profile":"x"`, false},
		{spawn, spawn + `,"labels":["x"]`, false},
		{spawn, spawn + `,"pty":{"rows":1,"cols":1}`, false},
		{spawn, spawn + `,"limits":{"pids":9}`, false},
		{spawn, `"type":"proc/spawn/req","cmd":["a b"],"env":{"X":"1","Y":"2"}`, false},
		{spawn, `"type":"proc/spawn/req","cmd":["a","b"],"env":{"X":"1"}`, false},
		{`"type":"proc/write/req","proc_id":"p","data":"hi"`, `"type":"proc/write/req","proc_id":"p","data":"aGk=","encoding":"base64","eof":false`, true},
		{`"type":"proc/write/req","proc_id":"p","data":"aGk="`, `"type":"proc/write/req","proc_id":"p","data":"aGk=","encoding":"base64"`, false},
		{`"type":"proc/write/req","proc_id":"p","data":"hi"`, `"type":"proc/write/req","proc_id":"p","data":"hi","eof":true`, false},
		{`"type":"proc/write/req","proc_id":"p","data":"hi"`, `"type":"proc/write/req","proc_id":"q","data":"hi"`, false},
		{`"type":"proc/kill/req","proc_id":"p"`, `"type":"proc/kill/req","proc_id":"p","signal":"SIGTERM"`, true},
		{`"type":"proc/kill/req","proc_id":"p"`, `"type":"proc/kill/req","proc_id":"p","signal":"SIGKILL"`, false},
		{`"type":"proc/kill/req","proc_id":"p"`, `"type":"proc/write/req","proc_id":"p","data":""`, false},
	} {
		if got := digest(t, c.one) == digest(t, c.other); got != c.same {
			t.Errorf("DigestOf(%s) == DigestOf(%s) is %t; want %t", c.one, c.other, got, c.same)
		}
	}
}

func digest(t *testing.T, fields string) proto.Digest {
	t.Helper()
	var head struct{ ID string }
	if err := json.Unmarshal([]byte("{"+fields+"}"), &head); err != nil {
		t.Fatal(err)
	}
	if head.ID == "" {
		fields += `,"id":"r"`
	}
	req, bad := proto.Decode([]byte(`{"version":"1.0",` + fields + `}`))
	if bad != nil {
		t.Fatalf("Decode(%s) = %s; want a request", fields, bad.Message)
	}
	named, ok := req.(proto.Named)
	if !ok {
		t.Fatalf("%T is not Named; want it to be", req)
	}
	d, err := proto.DigestOf(named)
	if err != nil {
		t.Fatalf("DigestOf(%s) = %v; want none", fields, err)
	}
	return d
}

func TestDigestText(t *testing.T) {
	d := digest(t, `"type":"proc/kill/req","proc_id":"p"`)
	text, err := d.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var back proto.Digest
	if err := back.UnmarshalText(text); err != nil || back != d || len(text) != 64 {
		t.Errorf("UnmarshalText(%s) = %v, %v; want the same digest", text, back, err)
	}
	for _, bad := range []string{"", "00", string(text[:63]) + "g", string(text) + "00"} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("UnmarshalText(%q) = nil; want an error", bad)
		}
	}
}
