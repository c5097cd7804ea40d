package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// verdict on a history.
type verdict int

const (
	linearizable verdict = iota
	violated
	undecided
)

func (v verdict) String() string {
	return [...]string{"linearizable", "violated", "undecided"}[v]
}

// part of a history that can be judged by itself: the operations on keys that belong together.
type part struct {
	name       string
	keys       int
	prepared   []*prepared
	operations []porcupine.Operation
	readers    readers
}

func (p *part) add(one *prepared, returns map[*operation]int64) {
	p.prepared = append(p.prepared, one)
	p.operations = append(p.operations, porcupine.Operation{
		ClientId: int(one.source.process % math.MaxInt32), Input: one,
		Call: one.source.invoked, Return: returns[one.source],
	})
}

// search looks for an order. Operations of which nothing was seen may never have happened: if there
// is an order without them, there is one. If there is none, some of them may be what is missing; most
// likely those that remove keys, for nobody can tell who removed one.
func (p *part) search(patience time.Duration) porcupine.CheckResult {
	p.readers = observe(p.prepared)
	var sure, removals []porcupine.Operation
	for _, one := range p.operations {
		if one.Return != math.MaxInt64 {
			sure, removals = append(sure, one), append(removals, one)
		} else if one.Input.(*prepared).removes() {
			removals = append(removals, one)
		}
	}
	for _, some := range [][]porcupine.Operation{sure, removals} {
		if len(some) < len(p.operations) &&
			porcupine.CheckOperationsTimeout(model(p), some, patience) == porcupine.Ok {
			return porcupine.Ok
		}
	}
	return porcupine.CheckOperationsTimeout(model(p), p.operations, patience)
}

// judgement of a history, with the part that decided it where that is not all of it.
type judgement struct {
	verdict verdict
	why     string
	part    *part
}

// judge tells whether an order explains what the clients saw: first each key by itself, then
// together the keys that transactions connect. The time is that for each search.
func judge(history []operation, patience time.Duration) judgement {
	all := namesOf(history)
	var ready []prepared
	for index := range history {
		one := &history[index]
		// A refused operation never happened. Nobody knows what an unknown one read.
		if one.fate == refused || one.fate == unknown && one.onlyReads() {
			continue
		}
		if one.fate != unknown && one.ended < one.invoked {
			return judgement{verdict: violated, why: "ended before it was called: " + describe(one)}
		}
		ready = append(ready, all.prepare(one))
	}
	returns := returnsOf(ready)
	lines := map[*operation]int64{}
	for index := range ready {
		lines[ready[index].source] = returns[index]
	}
	for key := range all.keys {
		one := projection(ready, lines, key, all.keys[key])
		if one.search(patience) == porcupine.Illegal {
			why := fmt.Sprintf("no order explains what was read and written of %q", all.keys[key])
			return judgement{violated, why, &one}
		}
	}
	found := judgement{verdict: linearizable}
	for _, one := range components(ready, lines, all) {
		switch one.search(patience) {
		case porcupine.Illegal:
			return judgement{violated, "no order explains the operations on " + one.name, &one}
		case porcupine.Unknown:
			found = judgement{undecided, "the time is over for " + one.name, &one}
		}
	}
	return found
}

// returnsOf gives the time by which each operation happened. An unknown one may happen at any time,
// or never, which is the same as after everything else; unless a value that it alone writes was
// seen: then it happened before whoever saw it returned.
func returnsOf(ready []prepared) []int64 {
	writers := map[uint32]int{}
	for index := range ready {
		own := map[uint32]bool{}
		for _, step := range ready[index].steps {
			if (step.kind == write || step.kind == insert) && !own[step.value] {
				own[step.value] = true
				if _, taken := writers[step.value]; taken {
					writers[step.value] = -1
				} else {
					writers[step.value] = index
				}
			}
		}
	}
	returns := make([]int64, len(ready))
	for index := range ready {
		returns[index] = math.MaxInt64
		if ready[index].known {
			returns[index] = ready[index].source.ended
		}
	}
	seen := func(value uint32, by int) {
		writer, known := writers[value]
		if !known || writer < 0 || writer == by || ready[writer].known {
			return
		}
		// What was seen before it was called is for the search to refuse.
		if end := ready[by].source.ended; end >= ready[writer].source.invoked {
			returns[writer] = min(returns[writer], end)
		}
	}
	for index := range ready {
		if !ready[index].known || ready[index].failedStep >= 0 {
			continue
		}
		for _, step := range ready[index].steps {
			if step.kind == compare {
				seen(step.value, index)
			}
			seen(step.result.value, index)
			for _, found := range step.result.entries {
				seen(found.value, index)
			}
		}
	}
	return returns
}

func (o *operation) onlyReads() bool {
	for _, one := range o.steps {
		if one.kind == insert || one.kind == write || one.kind == remove {
			return false
		}
	}
	return true
}

// projection of a history onto one key: what each operation says about it, whatever it says about
// others. If this has no order, the history has none.
func projection(ready []prepared, returns map[*operation]int64, key int, name string) part {
	projected := part{name: fmt.Sprintf("%q", name), keys: 1}
	for index := range ready {
		if one, any := project(&ready[index], key); any {
			projected.add(&one, returns)
		}
	}
	return projected
}

func project(one *prepared, key int) (prepared, bool) {
	to := prepared{known: one.known, failedStep: -1, source: one.source}
	cutAt, cutAtComparison := math.MaxInt, false
	for _, step := range one.steps {
		if step.index == one.failedStep {
			cutAt, cutAtComparison = step.index, step.kind == compare
			if step.key == key && step.kind != scan {
				to.failedStep = step.index
			}
		}
	}
	for _, step := range one.steps {
		if step.key > key || step.end <= key {
			continue
		}
		// Of a failed transaction it is known that what stands before the failed step held, and
		// that comparisons stand before everything else. The other steps matter to its own key.
		if one.failedStep >= 0 {
			before := step.index <= cutAt
			if cutAtComparison {
				before = before && step.kind == compare
			} else {
				before = step.kind == compare || before && to.failedStep >= 0
			}
			if !before {
				continue
			}
		}
		if step.kind == scan {
			value, certain := step.about(key)
			if !certain || one.failedStep >= 0 {
				continue
			}
			step = preparedStep{kind: read, index: step.index, result: preparedResult{value: value}}
		}
		step.key, step.end = 0, 1
		to.steps = append(to.steps, step)
	}
	changes := false
	for _, step := range to.steps {
		changes = changes || step.kind == insert || step.kind == write || step.kind == remove
	}
	return to, len(to.steps) > 0 && (to.known || changes)
}

// about tells what a scan says about a key inside of its range, if it says anything.
func (s *preparedStep) about(key int) (value uint32, certain bool) {
	for _, found := range s.result.entries {
		if found.key == key {
			return found.value, true
		}
	}
	if !s.result.more {
		return 0, true
	}
	if len(s.result.entries) == 0 {
		return 0, false
	}
	last := s.result.entries[len(s.result.entries)-1].key
	return 0, key < last != s.reverse
}

// components of a history: operations that share keys, directly or through others.
func components(ready []prepared, returns map[*operation]int64, all *names) []part {
	parent := make([]int, len(all.keys))
	for key := range parent {
		parent[key] = key
	}
	root := func(key int) int {
		for parent[key] != key {
			parent[key] = parent[parent[key]]
			key = parent[key]
		}
		return key
	}
	firstKey := func(one *prepared) int {
		first := -1
		for _, step := range one.steps {
			for key := step.key; key < step.end; key++ {
				if first < 0 {
					first = key
				}
				parent[root(key)] = root(first)
			}
		}
		return first
	}
	of := make([]int, len(ready))
	for index := range ready {
		of[index] = firstKey(&ready[index])
	}
	// Keys of a component keep their order, and a range covers neighbours.
	parts, place := map[int]*part{}, make([]int, len(all.keys))
	order := []*part{}
	for key := range all.keys {
		here := parts[root(key)]
		if here == nil {
			here = &part{}
			parts[root(key)] = here
			order = append(order, here)
		}
		place[key] = here.keys
		here.keys++
		if here.keys <= 8 {
			here.name += fmt.Sprintf(" %q", all.keys[key])
		}
	}
	// Operations that concern no key have to hold by themselves.
	none := &part{name: " no key"}
	for index := range ready {
		one, here := &ready[index], none
		if of[index] >= 0 {
			here = parts[root(of[index])]
			one = one.moved(place)
		}
		here.add(one, returns)
	}
	found := []part{}
	for _, one := range append(order, none) {
		if len(one.operations) > 0 {
			one.name = strings.TrimSpace(one.name)
			found = append(found, *one)
		}
	}
	return found
}

// moved is the operation with keys as they are numbered in its component.
func (p *prepared) moved(place []int) *prepared {
	to := *p
	to.steps = append([]preparedStep(nil), p.steps...)
	for index := range to.steps {
		step := &to.steps[index]
		if length := step.end - step.key; length > 0 {
			step.key = place[step.key]
			step.end = step.key + length
		} else {
			step.key, step.end = 0, 0
		}
		entries := make([]entry, len(step.result.entries))
		for at, one := range step.result.entries {
			entries[at] = entry{place[one.key], one.value}
		}
		step.result.entries = entries
	}
	return &to
}
