// Command reference tells how the kubelet reads image names. It is given a file with one JSON string a line and prints
// one JSON object for each.
package main

import (
	"bufio"
	// Without these two the digests of their algorithms would not be known; the kubelet has both.
	_ "crypto/sha256"
	_ "crypto/sha512"
	"encoding/json"
	"fmt"
	"os"

	"github.com/distribution/reference"
)

type answer struct {
	Error      string `json:"error,omitempty"`
	Domain     string `json:"domain"`
	Path       string `json:"path"`
	Tag        string `json:"tag"`
	Digest     string `json:"digest"`
	Normalised string `json:"normalised"`
	Tagged     string `json:"tagged"`
	Familiar   string `json:"familiar"`
}

func read(text string) answer {
	named, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		return answer{Error: err.Error()}
	}
	a := answer{
		Domain:     reference.Domain(named),
		Path:       reference.Path(named),
		Normalised: named.String(),
		Tagged:     reference.TagNameOnly(named).String(),
		Familiar:   reference.FamiliarString(named),
	}
	if tagged, ok := named.(reference.Tagged); ok {
		a.Tag = tagged.Tag()
	}
	if digested, ok := named.(reference.Digested); ok {
		a.Digest = digested.Digest().String()
	}
	return a
}

func main() {
	names, err := os.Open(os.Args[1])
	if err != nil {
		fail(err)
	}
	in := bufio.NewScanner(names)
	in.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var text string
		if err := json.Unmarshal(in.Bytes(), &text); err != nil {
			fail(err)
		}
		if err := encoder.Encode(read(text)); err != nil {
			fail(err)
		}
	}
	if err := in.Err(); err != nil {
		fail(err)
	}
	if err := out.Flush(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
