package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pinfold/policy"
	"pinfold/proto"
	"pinfold/supervisor/session"
)

// explained is the answer of a daemon with this profile to an explain of ls.
func explained(t *testing.T, run, profile string) proto.ExplainResp {
	t.Helper()
	const head = `version: 1
callers: [ { name: any, match: { uid: 1000 }, profiles: [p] } ]
profiles:
  p:
    commands: [ /usr/bin/ls ]
    workspace: { else: scratch }
`
	p, err := policy.Parse(policy.Source{Name: "p.yaml", Data: []byte(head + "    run_as: " + run + "\n" + profile)})
	if err != nil {
		t.Fatal(err)
	}
	p.Bind(policy.IDs{})
	who := policy.Caller{UID: 1000, GID: 1000, Name: "agent", Home: "/home/agent", UnitKnown: true}
	ask := policy.Request{Cmd: []string{"/usr/bin/ls"}}
	e := p.Explain(who, ask, lookAt(p.Candidates(who, ask)))
	b, err := session.EncodeExplanation(e)
	if err != nil || !e.Allowed() {
		t.Fatalf("Explain() = %s, %v; want yes", e, err)
	}
	return proto.ExplainResp{Allowed: true, Explanation: b}
}

func TestExplainAccess(t *testing.T) {
	tests := []struct {
		name, run, profile, args, want string
		code                           int
	}{
		{
			"a closed pen", "dynamic", "    fs: { read: [ /usr, /srv, /home/agent ], write: [ \"${workspace}\", /srv/out ], deny: [ /srv/key ] }\n",
			"--fs /usr/bin/ls --fs /srv/out/x --fs /srv/key/a --fs /home/agent/.ssh/id --fs /home/pen/x --fs /etc/shadow --fs /etc/passwd --fs /var/tmp/x --fs /dev/null --fs /root --net example.org:443 --net [::1]:80",
			`yes
fs /usr/bin/ls          read yes, write no   by mounts: /usr is read-only [p.yaml:8 (profile "p": fs.read)]
fs /srv/out/x           read yes, write yes  by mounts: /srv/out is writable [p.yaml:8 (profile "p": fs.write)]
fs /srv/key/a           read no, write no    by mounts: /srv/key is denied [p.yaml:8 (profile "p": fs.deny)]
fs /home/agent/.ssh/id  read no, write no    by mounts: /home/agent/.ssh is in the built-in list of secrets
fs /home/pen/x          read yes, write yes  by mounts: the home is the session's own [fs.home]
fs /etc/shadow          read no, write no    by mounts: no visible path holds it
fs /etc/passwd          read yes, write no   by mounts: /etc/passwd is the pen's own, read-only
fs /var/tmp/x           read yes, write yes  by mounts: /tmp is the command's own [fs.tmp]
fs /dev/null            read yes, write yes  by mounts: /dev/null is a device that every pen has
fs /root                read no, write no    by mounts: no visible path holds it
net example.org:443     no                   by netns: net: none: the pen has a loopback device alone
net [::1]:80            no                   by netns: net: none: the pen's loopback is its own; only what the command starts itself listens there
`, 1,
		},
		{
			"a home over the caller's", "caller", "    fs: { read: [ /usr, /home ] }\n", "--fs /home/agent/.ssh/id --fs /home/other/x",
			`yes
fs /home/agent/.ssh/id  read yes, write yes  by mounts: /home/agent is the pen's own
fs /home/other/x        read yes, write no   by mounts: /home is read-only [p.yaml:8 (profile "p": fs.read)]
`, 0,
		},
		{
			"no home", "dynamic", "    fs: { read: [ /usr, /home/agent ], home: none }\n", "--fs /home/agent/.ssh/id --fs /home/agent/x",
			`yes
fs /home/agent/.ssh/id  read no, write no   by mounts: /home/agent/.ssh is in the built-in list of secrets
fs /home/agent/x        read yes, write no  by mounts: /home/agent is read-only [p.yaml:8 (profile "p": fs.read)]
`, 1,
		},
		{
			"the host's network", "dynamic", "    fs: { read: [ /usr ] }\n    net: host\n", "--fs /usr/lib --net 10.0.0.1:22",
			`yes
fs /usr/lib      read yes, write no  by mounts: /usr is read-only [p.yaml:8 (profile "p": fs.read)]
net 10.0.0.1:22  yes                 by netns: net: host: the pen has the host's network, and Pinfold filters nothing of it
`, 0,
		},
		{"no port", "dynamic", "", "--net example.org", "", exitUsage},
		{"port 0", "dynamic", "", "--net example.org:0", "", exitUsage},
	}
	for _, tt := range tests {
		answer := explained(t, tt.run, tt.profile)
		d := serveFake(t, func(r proto.Request) []proto.Message {
			if e, ok := r.(*proto.ExplainReq); ok {
				resp := answer
				resp.Reply = proto.Done(e)
				return []proto.Message{&resp}
			}
			return nil
		})
		got := pinfold(t, "", append(append([]string{"explain", "--socket", d.socket}, strings.Fields(tt.args)...), "--", "ls")...)
		if diff := cmp.Diff(tt.want, got.stdout); diff != "" || got.code != tt.code {
			t.Errorf("%s: explain = %d, %s; want %d; differs (-want +got):\n%s", tt.name, got.code, got.stderr, tt.code, diff)
		}
	}
}
