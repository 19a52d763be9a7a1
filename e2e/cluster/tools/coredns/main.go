// Command coredns is CoreDNS with the plugins that a cluster on one machine needs and no others:
// the full set pulls in the client libraries of three clouds and takes ten times as long to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() {
	// The order in which plugins see a query, as in CoreDNS' own plugin.cfg.
	dnsserver.Directives = []string{"bind", "ready", "health", "errors", "cache", "kubernetes", "forward"}
}

func main() {
	coremain.Run()
}
