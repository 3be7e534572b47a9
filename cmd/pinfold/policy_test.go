package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/policy"
)

func writePolicy(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPolicyCheck(t *testing.T) {
	good := writePolicy(t, string(policy.DefaultSource().Data))
	got := pinfold(t, "", "policy", "check", good)
	if got.code != 0 || !strings.HasSuffix(got.stdout, "loads: "+good+"\n") || !strings.Contains(got.stdout, "EXPOSURE") {
		t.Errorf("policy check = %+v; want that the default policy loads", got)
	}
	bad := writePolicy(t, "version: 1\ncalers: []\nprofiles: { x: { comands: [ls] } }\n")
	got = pinfold(t, "", "policy", "check", bad)
	for _, want := range []string{bad + ":2:1: ", bad + ":3:", "try: man 5 pinfold-policy"} {
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("policy check = %+v; want every problem with its place, %q among them", got, want)
		}
	}
}

func TestPolicyShowIsAPolicy(t *testing.T) {
	good := writePolicy(t, string(policy.DefaultSource().Data))
	got := pinfold(t, "", "policy", "show", "--policy", good, "default")
	if got.code != 0 {
		t.Fatalf("policy show = %+v; want a profile", got)
	}
	if _, err := policy.Parse(policy.Source{Name: "shown", Data: []byte(got.stdout)}); err != nil {
		t.Errorf("policy show printed what does not load: %v", err)
	}
	got = pinfold(t, "", "policy", "show", "--policy", good, "defaults")
	if got.code != 1 || !strings.Contains(got.stderr, "try: one of: default") {
		t.Errorf("policy show defaults = %+v; want the profiles that there are", got)
	}
}

func TestPolicySchema(t *testing.T) {
	got := pinfold(t, "", "policy", "schema")
	var schema map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &schema); err != nil || got.code != 0 || schema["$schema"] == nil {
		t.Errorf("policy schema = %d, %v; want a JSON Schema", got.code, err)
	}
}

func TestLookAt(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(script, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	resolved, err := filepath.EvalSymlinks(script)
	if err != nil {
		t.Fatal(err)
	}
	facts := lookAt(policy.Candidates{Programs: []string{"link", "absent", dir + "/absent", os.Args[0]}, Path: []string{"/nonexistent", dir}, Dir: dir, Under: []string{"/nonexistent"}})
	link := facts.Programs[0]
	if link.Name != "link" || link.Path != resolved || link.Kind != policy.KindScript || !link.Executable || link.ID.Ino == 0 {
		t.Errorf("lookAt(link) = %+v; want the script that it leads to", link)
	}
	for i, want := range []string{"", "ENOENT", "ENOENT", ""} {
		if got := facts.Programs[i].Err; got != want {
			t.Errorf("lookAt(%s).Err = %q; want %q", facts.Programs[i].Name, got, want)
		}
	}
	if facts.Programs[3].Kind != policy.KindELF || facts.Dir.Kind != policy.KindDir || facts.Under[0].Err != "ENOENT" {
		t.Errorf("lookAt = %+v; want an ELF program, a directory and an absent one", facts)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	log := &tail{limit: 5}
	for _, part := range []string{"abc", "defg", ""} {
		if n, err := log.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("Write(%q) = %d, %v; want all of it", part, n, err)
		}
	}
	if got := log.String(); got != "cdefg" {
		t.Errorf("tail = %q; want the last 5 bytes", got)
	}
}
