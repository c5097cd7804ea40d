// Command judge is the independent judge of what Perdura's clients saw: it reads histories that the
// simulator and the chaos harness export, and has porcupine (github.com/anishathalye/porcupine)
// look for an order of operations that explains them. It shares no code with Perdura.
//
// The format of a history, and what the verdicts mean, is in docs/testing/judges.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const usage = `usage: judge [-timeout TIME] [-quiet] [-visualize DIR] FILE...
       judge -damage COUNT -out DIR FILE...

Judges histories, one operation per line. Exit code 0: all are linearizable; 1: one is violated;
2: wrong usage, or a file that is no history; 3: none is violated, and one is undecided.

With -damage, writes COUNT damaged copies of each history into DIR instead, for comparing judges.

`

func main() {
	flags := flag.NewFlagSet("judge", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flags.PrintDefaults()
	}
	patience := flags.Duration("timeout", time.Minute, "time for each search")
	quiet := flags.Bool("quiet", false, "name only histories that are not linearizable")
	pictures := flags.String("visualize", "", "write a page of each violation into `DIR`")
	damaged := flags.Int("damage", 0, "write so many damaged `COPIES` of each history")
	out := flags.String("out", "", "write damaged copies into `DIR`")
	// ExitOnError: it ends the program itself.
	_ = flags.Parse(os.Args[1:])
	if flags.NArg() == 0 || (*damaged > 0) != (*out != "") {
		flags.Usage()
		os.Exit(2)
	}
	if *damaged > 0 {
		for _, file := range flags.Args() {
			if err := damageFile(file, *out, *damaged); err != nil {
				fail(err)
			}
		}
		return
	}
	os.Exit(judgeFiles(flags.Args(), *patience, *quiet, *pictures))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "judge:", err)
	os.Exit(2)
}

type judged struct {
	judgement
	operations, unknown int
	took                time.Duration
	err                 error
}

// judgeFiles judges as many files at once as there are processors, and prints in order.
func judgeFiles(files []string, patience time.Duration, quiet bool, pictures string) int {
	results := make([]chan judged, len(files))
	next := make(chan int)
	for index := range results {
		results[index] = make(chan judged, 1)
	}
	go func() {
		for index := range files {
			next <- index
		}
		close(next)
	}()
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			for index := range next {
				results[index] <- judgeFile(files[index], patience)
			}
		})
	}
	counts, operations, unknowns := [3]int{}, 0, 0
	for index, file := range files {
		one := <-results[index]
		if one.err != nil {
			fail(fmt.Errorf("%s: %w", file, one.err))
		}
		counts[one.verdict]++
		operations += one.operations
		unknowns += one.unknown
		if !quiet || one.verdict != linearizable {
			fmt.Printf("%s %s", file, one.verdict)
			if one.why != "" {
				fmt.Printf(" (%s)", one.why)
			}
			fmt.Println()
		}
		if one.verdict == violated && pictures != "" && one.part != nil {
			if err := draw(pictures, file, one.part, patience); err != nil {
				fail(err)
			}
		}
	}
	workers.Wait()
	fmt.Printf("judged %d histories of %d operations (%d with unknown outcome): "+
		"%d linearizable, %d violated, %d undecided\n",
		len(files), operations, unknowns,
		counts[linearizable], counts[violated], counts[undecided])
	switch {
	case counts[violated] > 0:
		return 1
	case counts[undecided] > 0:
		return 3
	}
	return 0
}

func judgeFile(file string, patience time.Duration) judged {
	history, err := readHistory(file)
	if err != nil {
		return judged{err: err}
	}
	found := judged{operations: len(history)}
	for index := range history {
		if history[index].fate == unknown {
			found.unknown++
		}
	}
	started := time.Now()
	found.judgement = judge(history, patience)
	found.took = time.Since(started)
	return found
}

// draw writes porcupine's picture of a part that has no order.
func draw(directory, file string, one *part, patience time.Duration) error {
	model := model(one)
	_, info := porcupine.CheckOperationsVerbose(model, one.operations, patience)
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)) + ".html"
	return porcupine.VisualizePath(model, info, filepath.Join(directory, name))
}

func describe(one *operation) string {
	names := [...]string{"cmp", "read", "range", "insert", "write", "delete"}
	var words []string
	for _, step := range one.steps {
		word := fmt.Sprintf("%s %q", names[step.kind], step.key)
		if step.value.there {
			word += fmt.Sprintf(" %.40q", step.value.value)
		}
		if one.fate == happened {
			switch step.kind {
			case read:
				word += " = absent"
				if step.result.value.there {
					word = strings.TrimSuffix(word, "absent")
					word += fmt.Sprintf("%.40q", step.result.value.value)
				}
			case remove:
				word += fmt.Sprintf(" = %t", step.result.existed)
			case scan:
				word += fmt.Sprintf(" = %.200q", step.result.entries)
			}
		}
		words = append(words, word)
	}
	end := [...]string{"", fmt.Sprintf(" (step %d failed)", one.failedStep), " (refused)", " (unknown)"}
	return fmt.Sprintf("line %d: %s%s", one.line, strings.Join(words, "; "), end[one.fate])
}
