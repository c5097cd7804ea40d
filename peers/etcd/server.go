package main

import (
	"errors"
	"flag"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// Old revisions are kept until they are compacted, so long runs need more than the 2 GiB of the default.
const quotaBytes = 8 << 30

// serve runs one member until SIGTERM or SIGINT. All that is not set here is etcd's default, fsync included.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	name := flags.String("name", "", "name of this member")
	dir := flags.String("dir", "", "data directory")
	client := flags.String("client", "", "URL for clients")
	peer := flags.String("peer", "", "URL for the other members")
	cluster := flags.String("cluster", "", "NAME=URL of all members, with commas between")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	clientURL, err := url.Parse(*client)
	if err != nil {
		return err
	}
	peerURL, err := url.Parse(*peer)
	if err != nil {
		return err
	}

	config := embed.NewConfig()
	config.Name = *name
	config.Dir = *dir
	config.ListenClientUrls = []url.URL{*clientURL}
	config.AdvertiseClientUrls = []url.URL{*clientURL}
	config.ListenPeerUrls = []url.URL{*peerURL}
	config.AdvertisePeerUrls = []url.URL{*peerURL}
	config.InitialCluster = *cluster
	config.QuotaBackendBytes = quotaBytes
	config.LogLevel = "error"

	member, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer member.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-signals:
		return nil
	case err := <-member.Err():
		return err
	case <-member.Server.StopNotify():
		return errors.New("the member stopped by itself")
	}
}
