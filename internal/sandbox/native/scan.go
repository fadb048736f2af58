package native

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// How long a start may look for Unix sockets in what it mounts. What lies beyond is found in the kernel's own list of bound sockets,
// if it was bound under its absolute path in this network namespace.
const (
	scanEntries = 300_000
	scanTime    = 20 * time.Millisecond
	scanTools   = 2       // levels of a tool directory: they hold hundreds of thousands of files and, in practice, no socket
	scanUnix    = 4 << 20 // bytes of /proc/net/unix
	scanBatch   = 1024    // directory entries read at a time
)

// found is what a search for sockets came to, in paths of the sandbox.
type found struct {
	sockets []string
	notes   []string
}

// searchSockets walks the mounts and reads the kernel's list. list is the content of /proc/net/unix.
func searchSockets(mounts []planMount, tools int, list io.Reader, deadline time.Time) (found, error) {
	var f found
	seen := map[string]bool{}
	add := func(m planMount, source string) {
		p := filepath.Join(m.Target, strings.TrimPrefix(source, m.Source))
		if !seen[p] {
			seen[p] = true
			f.sockets = append(f.sockets, p)
		}
	}
	left := scanEntries
	for i, m := range mounts {
		if !m.Dir {
			continue
		}
		levels := 0
		if i >= len(mounts)-tools {
			levels = scanTools
		}
		if !walkSockets(m, levels, &left, deadline, add) && levels == 0 {
			f.notes = append(f.notes, m.Source+" is too large to be searched for Unix sockets at start: only those that are bound by their absolute path now are masked")
		}
	}
	lines := bufio.NewScanner(io.LimitReader(list, scanUnix))
	for lines.Scan() {
		i := strings.Index(lines.Text(), " /")
		if i < 0 {
			continue
		}
		p := filepath.Clean(lines.Text()[i+1:])
		for _, m := range mounts {
			if within(p, m.Source) {
				add(m, p)
			}
		}
	}
	if len(f.sockets) > maxMasks {
		return found{}, &Error{Op: "mask sockets", Err: errors.New("more Unix sockets below the mounts than can be masked"), Hint: "mount a smaller directory"}
	}
	return f, lines.Err()
}

// walkSockets reports false when it had to stop early. levels bounds the depth; 0 is no bound.
func walkSockets(m planMount, levels int, left *int, deadline time.Time, add func(planMount, string)) bool {
	type dir struct {
		path  string
		level int
	}
	for todo := []dir{{m.Source, 1}}; len(todo) > 0; {
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		f, err := os.OpenFile(d.path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // gone, or not readable by us, and then not by the command
		}
		for {
			entries, err := f.ReadDir(scanBatch)
			*left -= len(entries)
			for _, e := range entries {
				switch {
				case e.Type()&fs.ModeSocket != 0:
					add(m, filepath.Join(d.path, e.Name()))
				case e.IsDir() && (levels == 0 || d.level < levels):
					todo = append(todo, dir{filepath.Join(d.path, e.Name()), d.level + 1})
				}
			}
			if err != nil || len(entries) == 0 {
				break
			}
			if *left <= 0 || time.Now().After(deadline) {
				f.Close()
				return false
			}
		}
		f.Close()
		if len(todo) > 0 && (*left <= 0 || time.Now().After(deadline)) {
			return false
		}
	}
	return true
}

// socketsBelow searches what was gathered.
func socketsBelow(mounts []planMount, tools int) (found, error) {
	list, err := os.Open("/proc/self/net/unix")
	if err != nil {
		return found{}, &Error{Op: "mask sockets", Err: err}
	}
	defer list.Close()
	return searchSockets(mounts, tools, list, time.Now().Add(scanTime))
}
