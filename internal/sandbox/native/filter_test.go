package native

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// vm is the assembled program, disassembled again: what is tested is what the kernel gets.
func vm(t testing.TB) *bpf.VM {
	t.Helper()
	raw, err := assemble()
	if err != nil {
		t.Fatal(err)
	}
	program, all := bpf.Disassemble(raw)
	if !all {
		t.Fatal("the program holds instructions that nobody understands")
	}
	m, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// decide runs the program on one system call. The interpreter reads big-endian words, the kernel its own.
func decide(t testing.TB, m *bpf.VM, arch, nr uint32, args [6]uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offCall:], nr)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[offArgs+8*i+4:], uint32(a>>32))
	}
	n, err := m.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// wanted is the table read by a person: the first rule for the call whose tests all hold.
func wanted(nr uint32, args [6]uint64) uint32 {
	if nr >= x32Bit {
		return retKill
	}
	if nr > reviewed {
		return retErrno | uint32(unix.ENOSYS)
	}
	numbers := callNumbers()
	for _, r := range filterTable() {
		for _, name := range r.Calls {
			if n, ok := numbers[name]; !ok || n != nr {
				continue
			}
			holds := true
			for _, c := range r.tests {
				v := uint32(args[c.arg])
				if c.bits {
					holds = holds && v&c.mask != 0
					continue
				}
				if c.mask != 0 {
					v &= c.mask
				}
				holds = holds && slices.Contains(c.any, v) != c.not
			}
			if holds {
				return retErrno | uint32(r.errno)
			}
		}
	}
	return retAllow
}

func TestFilterSaysWhatTheTableSays(t *testing.T) {
	m := vm(t)
	for nr := range uint32(700) {
		for _, args := range [][6]uint64{{}, {1, 1, 1, 1, 1, 1}, {^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}} {
			if got, want := decide(t, m, auditArch, nr, args), wanted(nr, args); got != want {
				t.Errorf("call %d%v: %#x, want %#x", nr, args, got, want)
			}
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		var nrs []uint32
		for _, n := range callNumbers() {
			nrs = append(nrs, n)
		}
		slices.Sort(nrs)
		nr := rapid.OneOf(rapid.SampledFrom(nrs), rapid.Uint32()).Draw(r, "nr")
		interesting := []uint64{0, 1, 2, 3, 10, 16, 40, 0x5412, 0x541c, 0x5423, unix.CLONE_NEWUSER, unix.CLONE_NEWNET | 17, unix.O_CREAT, 0o4755, 0o2755, 0o644, 0x40000, 0xffffffff}
		var args [6]uint64
		for i := range args {
			args[i] = rapid.OneOf(rapid.SampledFrom(interesting), rapid.Uint64()).Draw(r, fmt.Sprint("arg", i))
			if rapid.Bool().Draw(r, "high") {
				args[i] |= 1 << 40 // bits that the kernel does not look at
			}
		}
		if got, want := decide(t, m, auditArch, nr, args), wanted(nr, args); got != want {
			r.Fatalf("call %d%v: %#x, want %#x", nr, args, got, want)
		}
	})
}

func TestFilterKillsOtherArchitectures(t *testing.T) {
	m := vm(t)
	for _, arch := range []uint32{0, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64} {
		want := retKill
		if arch == auditArch {
			want = retAllow
		}
		if got := decide(t, m, arch, unix.SYS_GETPID, [6]uint64{}); got != want {
			t.Errorf("architecture %#x: %#x", arch, got)
		}
	}
	if got := decide(t, m, auditArch, unix.SYS_GETPID|x32Bit, [6]uint64{}); got != retKill {
		t.Errorf("x32: %#x", got)
	}
}

func TestFilterRefusesWhatHighBitsHide(t *testing.T) {
	m := vm(t)
	if got := decide(t, m, auditArch, unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSTI | 1<<32}); got != retErrno|uint32(unix.EPERM) {
		t.Errorf("TIOCSTI with high bits: %#x", got)
	}
	if got := decide(t, m, auditArch, unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK | 1<<32, 1}); got != retErrno|uint32(unix.EPERM) {
		t.Errorf("AF_VSOCK with high bits: %#x", got)
	}
}

func TestEveryFilterHasAReasonAndACall(t *testing.T) {
	numbers, own := callNumbers(), []string{}
	for _, f := range Filters() {
		if f.Name == "" || f.Reason == "" || f.Answer == "" {
			t.Errorf("%+v is not complete", f)
		}
		for _, c := range f.Calls {
			if _, ok := numbers[c]; !ok {
				own = append(own, c)
			}
		}
	}
	if auditArch == unix.AUDIT_ARCH_X86_64 && len(own) > 0 {
		t.Errorf("calls without a number: %v", own)
	}
}

// page is the reference page, which only root's run can find: the other run has no source tree.
const page = "../../../docs/reference/sandbox.md"

func TestReferencePageIsTheTable(t *testing.T) {
	if _, err := os.Stat("native.go"); err != nil && os.Getenv("TMPDIR") != "" {
		return // run from a copy outside of the source tree; the run inside of it has checked this
	}
	text := read(t, filepath.FromSlash(page))
	for name, rows := range map[string]string{"layout": layoutTable(), "filters": filterRows()} {
		if !strings.Contains(text, rows) {
			t.Errorf("%s does not hold this table of %s:\n%s", page, name, rows)
		}
	}
}

func layoutTable() string {
	var b strings.Builder
	b.WriteString("| path | is | why |\n| --- | --- | --- |\n")
	for _, e := range Layout() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", e.Path, e.Kind, e.Reason)
	}
	return b.String()
}

func filterRows() string {
	var b strings.Builder
	b.WriteString("| refused | answer | why | system calls |\n| --- | --- | --- | --- |\n")
	for _, f := range Filters() {
		calls := strings.Join(f.Calls, " ")
		if calls == "" {
			calls = "all"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, f.Answer, f.Reason, calls)
	}
	return b.String()
}
