package session

import (
	"strings"
	"testing"

	"pinfold/proto"
)

func TestTheLastWordOfAClientIsThatItsSessionIsTaken(t *testing.T) {
	link := &paper{}
	c := newClient(bare(), Options{}, link)
	for range maxOpen {
		if !c.out.take() {
			t.Fatal("take() = false; want a place")
		}
		c.out.answer(&proto.Pong{}, nil)
	}
	c.replaced()
	if err := c.Write([]byte("late\n")); err == nil {
		t.Error("Write() of output after that = nil; want it refused")
	}
	c.Serve() // returns: it is over
	lines := strings.Split(strings.TrimSpace(link.String()), "\n")
	if len(lines) != maxOpen+1 || !strings.Contains(lines[maxOpen], `"code":"session_taken"`) {
		t.Errorf("sent %d lines, the last %q; want all answers, then session_taken", len(lines), lines[len(lines)-1])
	}
	c.end() // a second time
}

func TestReadersOfAClientThatIsOver(t *testing.T) {
	c := newClient(bare(), Options{}, &paper{})
	c.end()
	if c.begin("p", &delivery{}, func(*delivery) { t.Error("a reader was started; want none") }) {
		t.Error("begin() = true; want false")
	}
	c.Wait()
}
