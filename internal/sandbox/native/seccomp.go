package native

import (
	"fmt"
	"math"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The filter allows what is not in its table, up to the last system call that was reviewed when the table was written; later ones do
// not exist for the command (ENOSYS) until somebody has looked at them. That has an allow-list's safety against what a new kernel
// brings, without four hundred names that only say "yes". Refused calls answer EPERM, or the errno of a kernel without the feature
// where programs fall back on that.
const reviewed = unix.SYS_FILE_SETATTR

// Where the fields of struct seccomp_data stand. Arguments are 64 bits wide; int arguments count only in their low half, as in the
// kernel, so that no high bits can hide a value.
const (
	offCall = 0
	offArch = 4
	offArgs = 16

	x32Bit = 0x4000_0000
)

const (
	retAllow = uint32(unix.SECCOMP_RET_ALLOW)
	retKill  = uint32(unix.SECCOMP_RET_KILL_PROCESS)
	retErrno = uint32(unix.SECCOMP_RET_ERRNO)
)

// test is one comparison with the low half of an argument.
type test struct {
	arg  int
	mask uint32 // applied first; 0 is all bits
	any  []uint32
	bits bool // true when any of mask's bits is set; any is not used
	not  bool
}

// rule refuses system calls. A rule with tests refuses only when all of them hold.
type rule struct {
	Filter
	errno unix.Errno // 0 kills the process
	tests []test
}

// block is the part of the program for one system call.
type block struct {
	nr    uint32
	rules []rule
}

// assemble compiles the table into a program for this architecture.
func assemble() ([]bpf.RawInstruction, error) {
	numbers := callNumbers()
	var blocks []block
	index := map[uint32]int{}
	for _, r := range filterTable() {
		for _, name := range r.Calls {
			nr, ok := numbers[name]
			if !ok {
				continue // a call of another architecture
			}
			i, ok := index[nr]
			if !ok {
				i = len(blocks)
				index[nr] = i
				blocks = append(blocks, block{nr: nr})
			}
			blocks[i].rules = append(blocks[i].rules, r)
		}
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: retKill},
		bpf.LoadAbsolute{Off: offCall, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32Bit, SkipTrue: 1},
		bpf.RetConstant{Val: retKill},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: reviewed, SkipTrue: 1},
		bpf.RetConstant{Val: retErrno | uint32(unix.ENOSYS)},
	}
	for _, b := range blocks {
		body := b.body()
		if len(body) > math.MaxUint8 {
			return nil, fmt.Errorf("filter for call %d has %d instructions", b.nr, len(body))
		}
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: b.nr, SkipTrue: uint8(len(body))})
		program = append(program, body...)
	}
	program = append(program, bpf.RetConstant{Val: retAllow})
	return bpf.Assemble(program)
}

// body answers for one call; it never falls through. An unconditional rule ends it.
func (b block) body() []bpf.Instruction {
	var out []bpf.Instruction
	for _, r := range b.rules {
		answer := retKill
		if r.errno != 0 {
			answer = retErrno | uint32(r.errno)
		}
		if len(r.tests) == 0 {
			return append(out, bpf.RetConstant{Val: answer})
		}
		var part []bpf.Instruction
		for i := len(r.tests) - 1; i >= 0; i-- {
			// What follows this test: the later tests and the answer. A test that does not hold skips all of it.
			part = append(r.tests[i].code(len(part)+1), part...)
		}
		out = append(append(out, part...), bpf.RetConstant{Val: answer})
	}
	return append(out, bpf.RetConstant{Val: retAllow})
}

// code falls through when the test holds and otherwise skips that many instructions more.
func (t test) code(skip int) []bpf.Instruction {
	out := []bpf.Instruction{bpf.LoadAbsolute{Off: offArgs + 8*uint32(t.arg), Size: 4}} // both architectures are little-endian
	if t.bits {
		return append(out, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: t.mask, SkipFalse: uint8(skip)})
	}
	if t.mask != 0 {
		out = append(out, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
	}
	for i, v := range t.any {
		rest := len(t.any) - 1 - i
		j := bpf.JumpIf{Cond: bpf.JumpEqual, Val: v}
		switch {
		case t.not:
			j.SkipTrue = uint8(rest + skip)
		case rest > 0:
			j.SkipTrue = uint8(rest)
		default:
			j.SkipFalse = uint8(skip)
		}
		out = append(out, j)
	}
	return out
}
