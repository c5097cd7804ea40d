package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// longestLine bounds a line of a history: a transaction with its results.
const longestLine = 64 << 20

// record is one line of a history, as docs/testing/judges.md describes it.
type record struct {
	Process uint64          `json:"process"`
	Invoked *int64          `json:"invoked"`
	Ended   *int64          `json:"ended"`
	Call    json.RawMessage `json:"call"`
	Outcome json.RawMessage `json:"outcome"`
}

type rawCall struct {
	Op    string    `json:"op"`
	Key   *string   `json:"key,omitempty"`
	Value *string   `json:"value,omitempty"`
	Steps []rawStep `json:"steps,omitempty"`
}

// rawStep has exactly one of its fields.
type rawStep struct {
	Cmp    *rawCompared `json:"cmp,omitempty"`
	Read   *rawNamed    `json:"read,omitempty"`
	Range  *rawRange    `json:"range,omitempty"`
	Insert *rawPair     `json:"insert,omitempty"`
	Write  *rawWritten  `json:"write,omitempty"`
	Delete *rawNamed    `json:"delete,omitempty"`
}

type rawCompared struct {
	Key   string  `json:"key"`
	Value *string `json:"value"`
}

type rawNamed struct {
	Key string `json:"key"`
}

type rawRange struct {
	Start   string  `json:"start"`
	End     *string `json:"end"`
	Limit   int     `json:"limit"`
	Reverse bool    `json:"reverse"`
}

type rawPair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type rawWritten struct {
	Key           string `json:"key"`
	Value         string `json:"value"`
	OnlyIfPresent bool   `json:"only_if_present"`
}

type rawEntries struct {
	Entries [][2]string `json:"entries"`
	More    bool        `json:"more"`
}

// kind of a step.
type kind int

const (
	compare kind = iota
	read
	scan
	insert
	write
	remove
)

// text is a value, or its absence.
type text struct {
	there bool
	value string
}

// step is what an operation does in one place. A get, put or delete is one step.
type step struct {
	kind          kind
	key           string
	value         text
	onlyIfPresent bool
	// Of a scan; hasEnd tells whether there is an end.
	end     string
	hasEnd  bool
	limit   int
	reverse bool
	// What it gave, if the operation is known to have happened.
	result result
}

// result of a step: of a read its value, of a scan its entries, of a delete whether the key was
// there, of all others nothing.
type result struct {
	value   text
	existed bool
	entries [][2]string
	more    bool
}

// fate of an operation.
type fate int

const (
	happened fate = iota
	failed        // a transaction that did not take effect
	refused       // certain not to have happened
	unknown       // it may have happened, or may still happen, or never
)

// operation of a client.
type operation struct {
	process uint64
	invoked int64
	ended   int64 // meaningless where the fate is unknown
	steps   []step
	fate    fate
	// Of a failed transaction, the step that failed it.
	failedStep int
	line       int
}

// readHistory reads a history, one operation per line.
func readHistory(path string) ([]operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parseHistory(file)
}

func parseHistory(source io.Reader) ([]operation, error) {
	lines := bufio.NewScanner(source)
	lines.Buffer(make([]byte, 1<<16), longestLine)
	var history []operation
	for number := 1; lines.Scan(); number++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		parsed, err := parseOperation(line)
		if err != nil {
			return nil, fmt.Errorf("line %d is not an operation: %w", number, err)
		}
		parsed.line = number
		history = append(history, parsed)
	}
	return history, lines.Err()
}

// strict decodes JSON and refuses what it does not know.
func strict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return fmt.Errorf("something follows the value")
	}
	return nil
}

func parseOperation(line []byte) (operation, error) {
	var raw record
	if err := strict(line, &raw); err != nil {
		return operation{}, err
	}
	if raw.Invoked == nil {
		return operation{}, fmt.Errorf("no field invoked")
	}
	var call rawCall
	if err := strict(raw.Call, &call); err != nil {
		return operation{}, fmt.Errorf("call: %w", err)
	}
	parsed := operation{process: raw.Process, invoked: *raw.Invoked}
	steps, err := call.steps()
	if err != nil {
		return operation{}, fmt.Errorf("call: %w", err)
	}
	parsed.steps = steps
	if err := parsed.parseOutcome(raw.Outcome, call.Op); err != nil {
		return operation{}, fmt.Errorf("outcome: %w", err)
	}
	if raw.Ended != nil {
		parsed.ended = *raw.Ended
	} else if parsed.fate == happened || parsed.fate == failed {
		return operation{}, fmt.Errorf("an outcome that is known, and no time at which it was")
	}
	return parsed, nil
}

func (call *rawCall) steps() ([]step, error) {
	single := func(kind kind) ([]step, error) {
		if call.Key == nil || (kind == write) != (call.Value != nil) || call.Steps != nil {
			return nil, fmt.Errorf("%s has other fields than it should", call.Op)
		}
		one := step{kind: kind, key: *call.Key}
		if call.Value != nil {
			one.value = text{true, *call.Value}
		}
		return []step{one}, nil
	}
	switch call.Op {
	case "get":
		return single(read)
	case "put":
		return single(write)
	case "delete":
		return single(remove)
	case "transaction":
		steps := make([]step, 0, len(call.Steps))
		for _, raw := range call.Steps {
			one, err := raw.step()
			if err != nil {
				return nil, err
			}
			steps = append(steps, one)
		}
		return steps, nil
	}
	return nil, fmt.Errorf("unknown op %q", call.Op)
}

func (raw rawStep) step() (step, error) {
	var found []step
	if one := raw.Cmp; one != nil {
		value := text{}
		if one.Value != nil {
			value = text{true, *one.Value}
		}
		found = append(found, step{kind: compare, key: one.Key, value: value})
	}
	if one := raw.Read; one != nil {
		found = append(found, step{kind: read, key: one.Key})
	}
	if one := raw.Range; one != nil {
		ranged := step{kind: scan, key: one.Start, limit: one.Limit, reverse: one.Reverse}
		if one.End != nil {
			ranged.hasEnd, ranged.end = true, *one.End
		}
		found = append(found, ranged)
	}
	if one := raw.Insert; one != nil {
		found = append(found, step{kind: insert, key: one.Key, value: text{true, one.Value}})
	}
	if one := raw.Write; one != nil {
		written := step{kind: write, key: one.Key, value: text{true, one.Value}}
		written.onlyIfPresent = one.OnlyIfPresent
		found = append(found, written)
	}
	if one := raw.Delete; one != nil {
		found = append(found, step{kind: remove, key: one.Key})
	}
	if len(found) != 1 {
		return step{}, fmt.Errorf("a step is one of cmp, read, range, insert, write, delete")
	}
	return found[0], nil
}

// parseOutcome reads "refused", "unknown" or {"ok": ...} as the answer to a call.
func (o *operation) parseOutcome(data []byte, op string) error {
	var word string
	if json.Unmarshal(data, &word) == nil {
		switch word {
		case "refused":
			o.fate = refused
			return nil
		case "unknown":
			o.fate = unknown
			return nil
		}
		return fmt.Errorf("unknown word %q", word)
	}
	var ok struct {
		Ok json.RawMessage `json:"ok"`
	}
	if err := strict(data, &ok); err != nil {
		return err
	}
	if op == "transaction" {
		return o.parseTransaction(ok.Ok)
	}
	return o.steps[0].parseResult(ok.Ok, map[kind]string{write: "put"})
}

func (o *operation) parseTransaction(data []byte) error {
	var answer struct {
		Committed *[]json.RawMessage `json:"committed"`
		Failed    *int               `json:"failed"`
	}
	if err := strict(data, &answer); err != nil {
		return err
	}
	if (answer.Committed == nil) == (answer.Failed == nil) {
		return fmt.Errorf("a transaction is either committed or failed")
	}
	if answer.Failed != nil {
		o.fate, o.failedStep = failed, *answer.Failed
		if o.failedStep < 0 || o.failedStep >= len(o.steps) {
			return fmt.Errorf("there is no step %d that failed", o.failedStep)
		}
		return nil
	}
	if len(*answer.Committed) != len(o.steps) {
		return fmt.Errorf("%d results for %d steps", len(*answer.Committed), len(o.steps))
	}
	done := map[kind]string{compare: "done", insert: "done", write: "done"}
	for index, one := range *answer.Committed {
		if err := o.steps[index].parseResult(one, done); err != nil {
			return err
		}
	}
	return nil
}

// parseResult reads the result of one step. `words` are those that say that a step which gives
// nothing is done.
func (s *step) parseResult(data []byte, words map[kind]string) error {
	if word, ok := words[s.kind]; ok {
		var found string
		if json.Unmarshal(data, &found) != nil || found != word {
			return fmt.Errorf("the result of a step is %s, not %q", data, word)
		}
		return nil
	}
	var answer map[string]json.RawMessage
	if err := json.Unmarshal(data, &answer); err != nil || len(answer) != 1 {
		return fmt.Errorf("%s is no result", data)
	}
	if value, ok := answer["value"]; ok && s.kind == read {
		var found *string
		if err := strict(value, &found); err != nil {
			return err
		}
		if found != nil {
			s.result.value = text{true, *found}
		}
		return nil
	}
	if value, ok := answer["deleted"]; ok && s.kind == remove {
		return strict(value, &s.result.existed)
	}
	if value, ok := answer["entries"]; ok && s.kind == scan {
		var found rawEntries
		if err := strict(value, &found); err != nil {
			return err
		}
		s.result.entries, s.result.more = found.Entries, found.More
		return nil
	}
	return fmt.Errorf("%s is no result of such a step", data)
}
