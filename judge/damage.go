package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// Damaged histories: copies in which one thing differs from what clients saw. Most of them have no
// order, some still have one; what matters is that two judges say the same of each.

// line of a history, loosely: whatever is not touched stays as it is.
type line map[string]any

func damageFile(file, directory string, count int) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	hash := fnv.New64a()
	hash.Write([]byte(name))
	random := rand.New(rand.NewPCG(hash.Sum64(), 1))
	for copy := range count {
		var lines []line
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		for decoder.More() {
			var one line
			if err := decoder.Decode(&one); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			lines = append(lines, one)
		}
		lines = damage(random, lines)
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		for _, one := range lines {
			if err := encoder.Encode(one); err != nil {
				return err
			}
		}
		path := filepath.Join(directory, fmt.Sprintf("%s-%d.jsonl", name, copy))
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// damage tries until something changed.
func damage(random *rand.Rand, lines []line) []line {
	values := writtenValues(lines)
	for range 1000 {
		at := random.IntN(len(lines))
		ok, known := lines[at]["outcome"].(map[string]any)
		if !known {
			continue
		}
		switch random.IntN(5) {
		case 0: // The operation never happened, whatever its client saw.
			return append(lines[:at:at], lines[at+1:]...)
		case 1: // It was refused.
			lines[at]["outcome"] = "refused"
			return lines
		case 2: // It happened at the time of another one.
			other := lines[random.IntN(len(lines))]
			if other["ended"] != nil {
				lines[at]["invoked"], lines[at]["ended"] = other["invoked"], other["ended"]
				return lines
			}
		default: // It gave something else.
			if changed, done := differ(random, ok["ok"], values); done {
				ok["ok"] = changed
				return lines
			}
		}
	}
	return lines
}

// writtenValues of the puts of a history.
func writtenValues(lines []line) []string {
	var values []string
	for _, one := range lines {
		if call, fine := one["call"].(map[string]any); fine {
			if value, there := call["value"].(string); there {
				values = append(values, value)
			}
		}
	}
	return values
}

// differ changes one value, or one word about a key's presence, in an answer.
func differ(random *rand.Rand, answer any, values []string) (any, bool) {
	object, fine := answer.(map[string]any)
	if !fine {
		return answer, false
	}
	if existed, there := object["deleted"].(bool); there {
		object["deleted"] = !existed
		return object, true
	}
	if _, there := object["value"]; there {
		object["value"] = nil
		if len(values) > 0 && random.IntN(4) > 0 {
			object["value"] = values[random.IntN(len(values))]
		}
		return object, true
	}
	if results, there := object["committed"].([]any); there && len(results) > 0 {
		at := random.IntN(len(results))
		changed, done := differ(random, results[at], values)
		results[at] = changed
		return object, done
	}
	if found, there := object["entries"].(map[string]any); there {
		entries, fine := found["entries"].([]any)
		if !fine || len(entries) == 0 {
			return object, false
		}
		at := random.IntN(len(entries))
		if pair, fine := entries[at].([]any); fine && len(values) > 0 && random.IntN(2) > 0 {
			pair[1] = values[random.IntN(len(values))]
			return object, true
		}
		found["entries"] = append(entries[:at:at], entries[at+1:]...)
		return object, true
	}
	return object, false
}
