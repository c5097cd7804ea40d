package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

type settings struct {
	endpoints   []string
	callers     int
	connections int
	keys        int
	valueSize   int
	warmUp      time.Duration
	measured    time.Duration
	fill        bool
}

// What the driver reads from the last line of standard output.
type result struct {
	Writes  int     `json:"writes"`
	Errors  int64   `json:"errors"`
	Seconds float64 `json:"seconds"`
	P50     float64 `json:"p50_us"`
	P99     float64 `json:"p99_us"`
}

// load writes in a closed loop. It prints `begin` and `end` around the time that counts, so that the
// driver reads processor times then, and the result after them.
func load(arguments []string) error {
	s, err := parse(arguments)
	if err != nil {
		return err
	}
	clients := make([]*clientv3.Client, s.connections)
	for i := range clients {
		clients[i], err = clientv3.New(clientv3.Config{
			Endpoints: s.endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return err
		}
		defer clients[i].Close()
	}
	values := make([]byte, 1<<20+s.valueSize)
	for i := range values {
		values[i] = byte(rand.Uint32())
	}
	if s.fill {
		if err := fill(s, clients, values); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(measure(s, clients, values))
}

func parse(arguments []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	endpoints := flags.String("endpoints", "", "URLs of members, with commas between")
	flags.IntVar(&s.callers, "callers", 64, "writes in flight")
	flags.IntVar(&s.connections, "connections", 1, "client connections that the callers share")
	flags.IntVar(&s.keys, "keys", 10000, "number of keys")
	flags.IntVar(&s.valueSize, "value-size", 512, "bytes of a value")
	flags.BoolVar(&s.fill, "fill", false, "write each key once first")
	flags.DurationVar(&s.warmUp, "warm-up", 4*time.Second, "time before the one that counts")
	flags.DurationVar(&s.measured, "seconds", 8*time.Second, "time that counts")
	if err := flags.Parse(arguments); err != nil {
		return s, err
	}
	s.endpoints = strings.Split(*endpoints, ",")
	if *endpoints == "" || s.callers < 1 || s.connections < 1 || s.keys < 1 || s.valueSize < 0 {
		return s, errors.New("give -endpoints, and numbers that are not below 1")
	}
	return s, nil
}

func key(i int) string { return fmt.Sprintf("k%015d", i) }

// value is a part of random bytes, which do not compress.
func value(values []byte, size int) string {
	from := rand.IntN(len(values) - size)
	return string(values[from : from+size])
}

func put(client *clientv3.Client, key, value string) error {
	within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := client.Put(within, key, value)
	return err
}

// fill writes all keys once, with as many callers as will be measured.
func fill(s settings, clients []*clientv3.Client, values []byte) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var running sync.WaitGroup
	for caller := range s.callers {
		running.Go(func() {
			for i := next.Add(1); i <= int64(s.keys) && failed.Load() == nil; i = next.Add(1) {
				if err := put(clients[caller%len(clients)], key(int(i-1)), value(values, s.valueSize)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	running.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// measure counts the writes that are acknowledged between `begin` and `end`, whenever they began.
func measure(s settings, clients []*clientv3.Client, values []byte) result {
	var counting, stopped atomic.Bool
	var failures atomic.Int64
	latencies := make([][]time.Duration, s.callers)
	var running sync.WaitGroup
	for caller := range s.callers {
		running.Go(func() {
			client := clients[caller%len(clients)]
			var mine []time.Duration
			for !stopped.Load() {
				sent := time.Now()
				err := put(client, key(rand.IntN(s.keys)), value(values, s.valueSize))
				switch {
				case !counting.Load():
				case err != nil:
					failures.Add(1)
				default:
					mine = append(mine, time.Since(sent))
				}
			}
			latencies[caller] = mine
		})
	}
	time.Sleep(s.warmUp)
	fmt.Println("begin")
	began := time.Now()
	counting.Store(true)
	time.Sleep(s.measured)
	counting.Store(false)
	seconds := time.Since(began).Seconds()
	fmt.Println("end")
	stopped.Store(true)
	running.Wait()

	all := slices.Concat(latencies...)
	slices.Sort(all)
	return result{len(all), failures.Load(), seconds, quantile(all, 0.5), quantile(all, 0.99)}
}

func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(q*float64(len(sorted)-1))].Nanoseconds()) / 1000
}
