package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// record1 is a line of a history by hand: times, call and outcome.
func record1(invoked, ended int, call, outcome string) string {
	end := fmt.Sprint(ended)
	if ended == 0 {
		end = "null"
	}
	return fmt.Sprintf(`{"process":1,"invoked":%d,"ended":%s,"call":%s,"outcome":%s}`,
		invoked, end, call, outcome)
}

func put(invoked, ended int, key, value string) string {
	outcome := `{"ok":"put"}`
	if ended == 0 {
		outcome = `"unknown"`
	}
	return record1(invoked, ended, fmt.Sprintf(`{"op":"put","key":%q,"value":%q}`, key, value), outcome)
}

func get(invoked, ended int, key, value string) string {
	found := "null"
	if value != "" {
		found = fmt.Sprintf("%q", value)
	}
	return record1(invoked, ended, fmt.Sprintf(`{"op":"get","key":%q}`, key),
		fmt.Sprintf(`{"ok":{"value":%s}}`, found))
}

func del(invoked, ended int, key string, existed bool) string {
	return record1(invoked, ended, fmt.Sprintf(`{"op":"delete","key":%q}`, key),
		fmt.Sprintf(`{"ok":{"deleted":%t}}`, existed))
}

func txn(invoked, ended int, outcome string, steps ...string) string {
	return record1(invoked, ended,
		fmt.Sprintf(`{"op":"transaction","steps":[%s]}`, strings.Join(steps, ",")), outcome)
}

const (
	swap   = `{"cmp":{"key":"a","value":"1"}},{"write":{"key":"a","value":"2","only_if_present":false}}`
	swap3  = `{"cmp":{"key":"a","value":"1"}},{"write":{"key":"a","value":"3","only_if_present":false}}`
	both   = `{"write":{"key":"a","value":"x","only_if_present":false}},{"write":{"key":"b","value":"x","only_if_present":false}}`
	readAB = `{"read":{"key":"a"}},{"read":{"key":"b"}}`
	all    = `{"range":{"start":"","end":null,"limit":10,"reverse":false}}`
	done2  = `{"ok":{"committed":["done","done"]}}`
)

var cases = []struct {
	name  string
	want  verdict
	lines []string
}{
	{"nothing", linearizable, nil},
	{"one after the other", linearizable, []string{
		get(1, 2, "a", ""), put(3, 4, "a", "1"), get(5, 6, "a", "1"), del(7, 8, "a", true),
		get(9, 10, "a", ""), del(11, 12, "a", false)}},
	{"at once, in the other order", linearizable, []string{
		put(1, 10, "a", "1"), put(2, 9, "a", "2"), get(11, 12, "a", "1")}},
	{"called in the moment of the return", linearizable, []string{
		put(1, 5, "a", "1"), get(5, 6, "a", "")}},
	{"stale read", violated, []string{
		put(1, 2, "a", "1"), put(3, 4, "a", "2"), get(5, 6, "a", "1")}},
	{"stale fast read while the write is still under way elsewhere", violated, []string{
		put(1, 2, "a", "1"), put(3, 20, "a", "2"), get(4, 5, "a", "2"), get(6, 7, "a", "1")}},
	{"lost write", violated, []string{put(1, 2, "a", "1"), get(3, 4, "a", "")}},
	{"a write comes back", violated, []string{
		put(1, 2, "a", "1"), del(3, 4, "a", true), get(5, 6, "a", ""), get(7, 8, "a", "1")}},
	{"double apply", violated, []string{
		put(1, 2, "a", "1"), put(3, 4, "a", "2"), get(5, 6, "a", "2"), get(7, 8, "a", "1")}},
	{"one delete applied twice", violated, []string{
		put(1, 2, "a", "1"), del(3, 4, "a", true), put(5, 6, "a", "2"), get(7, 8, "a", "")}},
	{"read from nowhere", violated, []string{get(1, 2, "a", "1")}},
	{"read before it was written", violated, []string{get(1, 2, "a", "1"), put(3, 4, "a", "1")}},
	{"two swaps from one value", violated, []string{
		put(1, 2, "a", "1"), txn(3, 6, done2, swap), txn(4, 5, done2, swap3)}},
	{"a swap that fails, and had to", linearizable, []string{
		put(1, 2, "a", "1"), txn(3, 6, done2, swap), txn(4, 7, `{"ok":{"failed":0}}`, swap3)}},
	{"a swap that fails, and had not to", violated, []string{
		put(1, 2, "a", "1"), txn(3, 4, `{"ok":{"failed":0}}`, swap)}},
	{"failed by the wrong step", violated, []string{
		txn(1, 2, `{"ok":{"failed":1}}`, swap)}},
	{"unknown, took effect late", linearizable, []string{
		put(1, 0, "a", "1"), get(2, 3, "a", ""), get(4, 5, "a", ""), get(6, 7, "a", "1")}},
	{"unknown, never took effect", linearizable, []string{
		put(1, 0, "a", "1"), put(2, 3, "a", "2"), get(4, 5, "a", "2")}},
	{"unknown, took effect unseen", linearizable, []string{
		put(1, 0, "a", "1"), get(2, 3, "a", ""), del(4, 5, "a", true)}},
	{"unknown, took effect twice", violated, []string{
		put(1, 0, "a", "1"), get(2, 3, "a", "1"), put(4, 5, "a", "2"), get(6, 7, "a", "2"),
		get(8, 9, "a", "1")}},
	{"unknown, took effect before its call", violated, []string{
		get(1, 2, "a", "1"), put(3, 0, "a", "1")}},
	{"refused, and seen", violated, []string{
		record1(1, 2, `{"op":"put","key":"a","value":"1"}`, `"refused"`), get(3, 4, "a", "1")}},
	{"a transaction half seen, in two reads at once", violated, []string{
		txn(1, 10, done2, both), txn(2, 3,
			`{"ok":{"committed":[{"value":"x"},{"value":null}]}}`, readAB)}},
	{"a transaction half seen, one key after the other", violated, []string{
		txn(1, 10, done2, both), get(2, 3, "a", "x"), get(4, 5, "b", "")}},
	{"a transaction of unknown outcome, half seen", violated, []string{
		txn(1, 0, `"unknown"`, both), get(2, 3, "a", "x"), get(4, 5, "b", "")}},
	{"each key by itself, and both together not", violated, []string{
		put(1, 10, "a", "1"), put(1, 10, "b", "1"),
		txn(2, 9, `{"ok":{"committed":[{"value":"1"},{"value":null}]}}`, readAB),
		txn(2, 9, `{"ok":{"committed":[{"value":null},{"value":"1"}]}}`, readAB)}},
	{"a scan", linearizable, []string{
		put(1, 2, "a", "1"), put(3, 4, "b", "2"), txn(5, 6,
			`{"ok":{"committed":[{"entries":{"entries":[["a","1"],["b","2"]],"more":false}}]}}`, all)}},
	{"a scan that misses an entry", violated, []string{
		put(1, 2, "a", "1"), put(3, 4, "b", "2"), txn(5, 6,
			`{"ok":{"committed":[{"entries":{"entries":[["a","1"]],"more":false}}]}}`, all)}},
	{"a scan of two moments", violated, []string{
		put(1, 2, "a", "1"), put(3, 4, "b", "1"), del(5, 6, "a", true), put(7, 8, "b", "2"),
		txn(1, 9, `{"ok":{"committed":[{"entries":{"entries":[["a","1"],["b","2"]],"more":false}}]}}`, all)}},
	{"a scan up to its limit, backwards", linearizable, []string{
		put(1, 2, "a", "1"), put(3, 4, "b", "2"), txn(5, 6,
			`{"ok":{"committed":[{"entries":{"entries":[["b","2"]],"more":true}}]}}`,
			`{"range":{"start":"","end":null,"limit":1,"reverse":true}}`)}},
	{"more, where nothing is", violated, []string{
		put(1, 2, "a", "1"), txn(5, 6,
			`{"ok":{"committed":[{"entries":{"entries":[["a","1"]],"more":true}}]}}`, all)}},
	{"an insert over a key that is there", violated, []string{
		put(1, 2, "a", "1"),
		txn(3, 4, `{"ok":{"committed":["done"]}}`, `{"insert":{"key":"a","value":"2"}}`)}},
	{"a transaction sees its own writes", linearizable, []string{
		txn(1, 2, `{"ok":{"committed":["done",{"value":"1"},{"deleted":true},{"value":null}]}}`,
			`{"insert":{"key":"a","value":"1"}}`, `{"read":{"key":"a"}}`, `{"delete":{"key":"a"}}`,
			`{"read":{"key":"a"}}`)}},
	{"comparisons come first", violated, []string{
		txn(1, 2, done2, `{"insert":{"key":"a","value":"1"}}`, `{"cmp":{"key":"a","value":"1"}}`)}},
}

func TestVerdicts(t *testing.T) {
	for _, one := range cases {
		t.Run(one.name, func(t *testing.T) {
			history, err := parseHistory(strings.NewReader(strings.Join(one.lines, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			if found := judge(history, time.Minute); found.verdict != one.want {
				t.Errorf("%v, not %v: %s", found.verdict, one.want, found.why)
			}
		})
	}
}

func TestWhatIsNoHistoryIsRefused(t *testing.T) {
	for _, bad := range []string{
		`{`, `[]`, `{"process":1,"invoked":1,"ended":2}`,
		record1(1, 0, `{"op":"get","key":"a"}`, `{"ok":{"value":null}}`),
		record1(1, 2, `{"op":"get","key":"a","value":"b"}`, `"unknown"`),
		record1(1, 2, `{"op":"increment","key":"a"}`, `"unknown"`),
		record1(1, 2, `{"op":"get","key":"a"}`, `{"ok":"put"}`),
		record1(1, 2, `{"op":"get","key":"a"}`, `{"ok":{"deleted":true}}`),
		record1(1, 2, `{"op":"get","key":"a"}`, `"perhaps"`),
		txn(1, 2, `{"ok":{"committed":[]}}`, swap), txn(1, 2, `{"ok":{"failed":7}}`, swap),
		txn(1, 2, `"unknown"`, `{"touch":{"key":"a"}}`),
	} {
		if _, err := parseHistory(strings.NewReader(bad)); err == nil {
			t.Errorf("taken for a history: %s", bad)
		}
	}
}

// A history of many clients that is linearizable, damaged in every way that there is: the judge
// finds most of it.
func TestDamageIsFound(t *testing.T) {
	directory := t.TempDir()
	var lines []string
	for round := range 40 {
		at := 10 * round
		value := fmt.Sprint(round)
		lines = append(lines, put(at+1, at+3, "a", value), get(at+4, at+5, "a", value),
			del(at+6, at+7, "a", true), get(at+8, at+9, "a", ""))
	}
	path := filepath.Join(directory, "good.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := judgeFiles([]string{path}, time.Minute, true, ""); code != 0 {
		t.Fatalf("exit code %d for a good history", code)
	}
	if err := damageFile(path, directory, 50); err != nil {
		t.Fatal(err)
	}
	found := 0
	for copy := range 50 {
		path := filepath.Join(directory, fmt.Sprintf("good-%d.jsonl", copy))
		found += judgeFiles([]string{path}, time.Minute, true, directory)
	}
	if found < 30 {
		t.Errorf("%d of 50 damaged histories were found", found)
	}
	if pictures, _ := filepath.Glob(filepath.Join(directory, "*.html")); len(pictures) != found {
		t.Errorf("%d pictures of %d violations", len(pictures), found)
	}
}
