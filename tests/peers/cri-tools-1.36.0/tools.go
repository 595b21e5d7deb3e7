//go:build tools

// Package tools names the commands that the peer is built from, so that go.sum covers them.
package tools

import (
	_ "sigs.k8s.io/cri-tools/cmd/crictl"
	_ "sigs.k8s.io/cri-tools/cmd/critest"
)
