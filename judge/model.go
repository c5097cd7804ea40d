package main

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"
)

// The store as its users know it: a map, and transactions that happen whole or not. All
// comparisons of a transaction are evaluated first, on the state before it; the other steps follow
// in order, and each sees what those before it did.
//
// Keys are numbered in their order and values in the order of their first mention, so that a state
// is a string of eight bytes per key, cheap to compare and to hash: the value (0 is absence), and
// how many operations have read it. The latter is not of the store; it makes the search fast: a
// value that one operation alone writes cannot be replaced before everybody has read it who did. It
// follows from which operations have happened, so that it makes no two states of one.

const (
	valueBytes = 4
	keyBytes   = 2 * valueBytes
)

// observation of a value that another operation wrote.
type observation struct {
	key   int
	value uint32
}

// readers of each value of which it is known who wrote it.
type readers map[observation]uint32

// prepared is an operation over numbered keys and values.
type prepared struct {
	steps []preparedStep
	// Whether it is known what became of it. If not, it does what the state lets it do.
	known bool
	// The step that failed it (an `index`), or -1.
	failedStep int
	// What it read that it had not written itself; only if it happened.
	observed []observation
	source   *operation
}

type preparedStep struct {
	kind  kind
	index int // in the transaction
	// Of a scan: keys from `key` up to before `end`.
	key, end      int
	value         uint32
	onlyIfPresent bool
	limit         int
	reverse       bool
	result        preparedResult
}

type preparedResult struct {
	value   uint32
	existed bool
	entries []entry
	more    bool
}

type entry struct {
	key   int
	value uint32
}

func (p *prepared) removes() bool {
	return slices.ContainsFunc(p.steps, func(one preparedStep) bool { return one.kind == remove })
}

// names numbers keys and values.
type names struct {
	keys   []string
	values map[string]uint32
}

func namesOf(history []operation) *names {
	keys := map[string]bool{}
	all := &names{values: map[string]uint32{}}
	value := func(one text) {
		if _, known := all.values[one.value]; one.there && !known {
			all.values[one.value] = uint32(len(all.values) + 1)
		}
	}
	for index := range history {
		for _, one := range history[index].steps {
			if one.kind != scan {
				keys[one.key] = true
			}
			value(one.value)
			value(one.result.value)
			for _, found := range one.result.entries {
				keys[found[0]] = true
				value(text{true, found[1]})
			}
		}
	}
	for key := range keys {
		all.keys = append(all.keys, key)
	}
	sort.Strings(all.keys)
	return all
}

// place of a key, or of the first one behind it.
func (n *names) place(key string) int {
	return sort.SearchStrings(n.keys, key)
}

func (n *names) value(one text) uint32 {
	if !one.there {
		return 0
	}
	return n.values[one.value]
}

func (n *names) prepare(one *operation) prepared {
	ready := prepared{known: one.fate != unknown, failedStep: -1, source: one}
	if one.fate == failed {
		ready.failedStep = one.failedStep
	}
	for index, from := range one.steps {
		to := preparedStep{
			kind: from.kind, index: index, key: n.place(from.key), value: n.value(from.value),
			onlyIfPresent: from.onlyIfPresent, limit: from.limit, reverse: from.reverse,
		}
		to.end = to.key + 1
		if from.kind == scan {
			to.end = len(n.keys)
			if from.hasEnd {
				to.end = max(to.key, n.place(from.end))
			}
		}
		to.result = preparedResult{
			value: n.value(from.result.value), existed: from.result.existed, more: from.result.more,
		}
		for _, found := range from.result.entries {
			one := entry{n.place(found[0]), n.value(text{true, found[1]})}
			to.result.entries = append(to.result.entries, one)
		}
		ready.steps = append(ready.steps, to)
	}
	return ready
}

// observe notes what operations read, and counts who will have read what.
func observe(operations []*prepared) readers {
	writers := map[observation]*prepared{}
	var several prepared
	for _, one := range operations {
		for _, step := range one.steps {
			if step.kind == write || step.kind == insert {
				place := observation{step.key, step.value}
				if writer := writers[place]; writer != nil && writer != one {
					writers[place] = &several
				} else {
					writers[place] = one
				}
			}
		}
	}
	all := readers{}
	for _, one := range operations {
		if !one.known || one.failedStep >= 0 {
			continue
		}
		note := func(key int, value uint32) {
			place := observation{key, value}
			writer := writers[place]
			if writer == nil || writer == &several || writer == one || slices.Contains(one.observed, place) {
				return
			}
			one.observed = append(one.observed, place)
			all[place]++
		}
		for _, step := range one.steps {
			switch step.kind {
			case compare:
				note(step.key, step.value)
			case read:
				note(step.key, step.result.value)
			case scan:
				for _, found := range step.result.entries {
					note(found.key, found.value)
				}
			}
		}
	}
	return all
}

// state is a map in the making: it is copied before the first change.
type state struct {
	values  []byte
	readers readers
	changed bool
	// A value was replaced that others have yet to read.
	early bool
}

func (s *state) get(key int) uint32 {
	return binary.LittleEndian.Uint32(s.values[keyBytes*key:])
}

func (s *state) reads(key int) uint32 {
	return binary.LittleEndian.Uint32(s.values[keyBytes*key+valueBytes:])
}

func (s *state) set(key int, value uint32) {
	old := s.get(key)
	if old == value {
		return
	}
	if s.reads(key) < s.readers[observation{key, old}] {
		s.early = true
	}
	s.put(key, value, 0)
}

func (s *state) put(key int, value, reads uint32) {
	if !s.changed {
		s.values = append([]byte(nil), s.values...)
		s.changed = true
	}
	binary.LittleEndian.PutUint32(s.values[keyBytes*key:], value)
	binary.LittleEndian.PutUint32(s.values[keyBytes*key+valueBytes:], reads)
}

// holds tells whether a comparison does.
func (s *state) holds(one *preparedStep) bool {
	return s.get(one.key) == one.value
}

// take carries out a step that is no comparison. `possible` is false if it fails its transaction,
// `seen` is false if it gives something else than its client got.
func (s *state) take(one *preparedStep, known bool) (possible, seen bool) {
	switch one.kind {
	case read:
		return true, !known || s.get(one.key) == one.result.value
	case scan:
		return true, !known || s.scanned(one)
	case insert:
		if s.get(one.key) != 0 {
			return false, true
		}
		s.set(one.key, one.value)
	case write:
		if one.onlyIfPresent && s.get(one.key) == 0 {
			return false, true
		}
		s.set(one.key, one.value)
	case remove:
		existed := s.get(one.key) != 0
		s.set(one.key, 0)
		return true, !known || existed == one.result.existed
	}
	return true, true
}

// scanned tells whether a scan gives what its client got.
func (s *state) scanned(one *preparedStep) bool {
	next, more := 0, false
	visit := func(key int) bool {
		value := s.get(key)
		if value == 0 {
			return true
		}
		if next == one.limit {
			more = true
			return false
		}
		if next == len(one.result.entries) || one.result.entries[next] != (entry{key, value}) {
			next = -1
			return false
		}
		next++
		return true
	}
	if one.reverse {
		for key := one.end - 1; key >= one.key && visit(key); key-- {
		}
	} else {
		for key := one.key; key < one.end && visit(key); key++ {
		}
	}
	return next == len(one.result.entries) && more == one.result.more
}

// run carries out an operation; false if it cannot have happened here as its client saw it.
func run(before string, one *prepared, readers readers) (bool, string) {
	here := state{values: []byte(before), readers: readers}
	failedAt := -1
	for _, place := range one.observed {
		if here.get(place.key) != place.value {
			return false, before
		}
		here.put(place.key, place.value, here.reads(place.key)+1)
	}
	for index := range one.steps {
		if step := &one.steps[index]; step.kind == compare && !here.holds(step) {
			failedAt = step.index
			break
		}
	}
	if failedAt < 0 {
		for index := range one.steps {
			step := &one.steps[index]
			if step.kind == compare {
				continue
			}
			possible, seen := here.take(step, one.known && one.failedStep < 0)
			if !seen {
				return false, before
			}
			if !possible {
				failedAt = step.index
				break
			}
		}
	}
	if one.known && failedAt != one.failedStep {
		return false, before
	}
	if failedAt >= 0 || !here.changed {
		return true, before
	}
	return !here.early, string(here.values)
}

var seed = maphash.MakeSeed()

// model of a store of the keys of a part, all absent at first.
func model(one *part) porcupine.Model {
	empty := string(make([]byte, keyBytes*one.keys))
	return porcupine.Model{
		Init: func() any { return empty },
		Step: func(state, input, _ any) (bool, any) {
			possible, after := run(state.(string), input.(*prepared), one.readers)
			return possible, after
		},
		Hash: func(state any) uint64 { return maphash.String(seed, state.(string)) },
		DescribeOperation: func(input, _ any) string {
			return describe(input.(*prepared).source)
		},
	}
}
