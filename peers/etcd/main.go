// A peer for `make bench-peers`: one member of an etcd cluster, or a load client for it.
//
//	etcd-peer server  -name N -dir DIR -client URL -peer URL -cluster N=URL,...
//	etcd-peer load    -endpoints URL,... -callers C -connections K ...
//	etcd-peer version
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/api/v3/version"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: etcd-peer server|load|version [flags]")
		os.Exit(2)
	}
	var err error
	switch command, arguments := os.Args[1], os.Args[2:]; command {
	case "server":
		err = serve(arguments)
	case "load":
		err = load(arguments)
	case "version":
		fmt.Println(version.Version)
	default:
		err = fmt.Errorf("no command %q; there are server, load and version", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd-peer:", err)
		os.Exit(1)
	}
}
