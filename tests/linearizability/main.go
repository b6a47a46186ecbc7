// check HISTORY
//
// Judges a history of registers with porcupine, which is not ours: whether there is an order of all operations, each at
// one moment between its call and its return, in which every read returns what was written last.
//
// HISTORY has one operation a line, as crates/redhare/src/commands/bench/faults/history.rs writes them. A write without a
// return may have happened at any time after its call, or never. Each register is judged by itself, which is enough:
// linearizability is local.
//
// A write whose first attempt's end is not known is made again, and each attempt counts as a write of its own, until the
// write is acknowledged (the contract's "Writes"; crates/volume/src/simulation/linear.rs judges by the same). A history
// says how many attempts that may have been done its client made again meanwhile, at this write or at others ("repeats"),
// so a write may have happened as often again between its call and its return, and never after it.
//
// Exit status: 0 linearizable, 1 not, 2 the history cannot be read, 3 no verdict within the time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const limit = 5 * time.Minute

type line struct {
	Client   int    `json:"client"`
	Register uint64 `json:"register"`
	Write    bool   `json:"write"`
	Value    uint64 `json:"value"`
	Repeats  int    `json:"repeats"`
	Call     int64  `json:"call"`
	Return   *int64 `json:"return"`
}

type input struct {
	register uint64
	write    bool
	value    uint64
	// How many further attempts at a write there may have been.
	repeats int
	// A further attempt, which may have been none.
	further bool
}

// How many of them are looked for: a write that stood for seconds beside many others would keep the checker busy for hours.
const furtherMax = 3

var model = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		of := map[uint64][]porcupine.Operation{}
		for _, operation := range history {
			register := operation.Input.(input).register
			of[register] = append(of[register], operation)
		}
		parts := [][]porcupine.Operation{}
		for _, part := range of {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []interface{} { return []interface{}{uint64(0)} },
	Step: func(state, in, out interface{}) []interface{} {
		asked := in.(input)
		switch {
		case asked.further:
			return []interface{}{state, asked.value}
		case asked.write:
			return []interface{}{asked.value}
		case out.(uint64) == state.(uint64):
			return []interface{}{state}
		default:
			return nil
		}
	},
}

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	history := []porcupine.Operation{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		var found line
		if err := json.Unmarshal(lines.Bytes(), &found); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		end := int64(math.MaxInt64)
		if found.Return != nil {
			end = *found.Return
		}
		history = append(history, porcupine.Operation{
			ClientId: found.Client,
			Input:    input{register: found.Register, write: found.Write, value: found.Value, repeats: found.Repeats},
			Call:     found.Call,
			Output:   found.Value,
			Return:   end,
		})
	}
	return history, lines.Err()
}

// The further attempts that there may have been at writes beside which others ran: without another write between, they
// change nothing.
func furtherAttempts(history []porcupine.Operation) []porcupine.Operation {
	writes := map[uint64][]porcupine.Operation{}
	for _, operation := range history {
		if asked := operation.Input.(input); asked.write {
			writes[asked.register] = append(writes[asked.register], operation)
		}
	}
	further := []porcupine.Operation{}
	for _, of := range writes {
		for at, write := range of {
			asked := write.Input.(input)
			beside := 0
			for other, operation := range of {
				if other != at && beside < asked.repeats && beside < furtherMax &&
					operation.Call < write.Return && write.Call < operation.Return {
					beside++
				}
			}
			asked.further = true
			write.Input = asked
			for count := 0; count < beside; count++ {
				further = append(further, write)
			}
		}
	}
	return further
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: check HISTORY")
		os.Exit(2)
	}
	history, err := read(os.Args[1])
	if err == nil && len(history) == 0 {
		err = fmt.Errorf("%s has no operations", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(2)
	}
	registers := model.ToModel()
	all := append(history, furtherAttempts(history)...)
	verdict, information := porcupine.CheckOperationsVerbose(registers, all, limit)
	switch verdict {
	case porcupine.Ok:
		fmt.Printf("%d operations are linearizable, says porcupine\n", len(history))
	case porcupine.Illegal:
		picture := os.Args[1] + ".html"
		if err := porcupine.VisualizePath(registers, information, picture); err != nil {
			picture = err.Error()
		}
		fmt.Printf("NOT linearizable, says porcupine of %d operations; see %s\n", len(history), picture)
		os.Exit(1)
	default:
		fmt.Printf("no verdict on %d operations within %s\n", len(history), limit)
		os.Exit(3)
	}
}
