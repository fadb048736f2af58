package journal

import (
	"bufio"
	"errors"
	"io"

	"postern/internal/core/record"
)

var errLongLine = errors.New("longer than a line can be")

// lineReader reads lines of at most record.MaxLine bytes in flat memory.
type lineReader struct {
	br     *bufio.Reader
	number int   // of the line that next returned last, from 1
	offset int64 // behind the last whole line
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{br: bufio.NewReaderSize(r, record.MaxLine+1)}
}

// next is the next line without its newline, valid until the next call. whole is false for bytes at the end that no newline follows.
// At the end the error is io.EOF; errLongLine stands for one line that was skipped.
func (l *lineReader) next() (line []byte, whole bool, err error) {
	line, err = l.br.ReadSlice('\n')
	switch {
	case err == nil:
		l.number++
		l.offset += int64(len(line))
		return line[:len(line)-1], true, nil
	case err == io.EOF && len(line) > 0:
		l.number++
		return line, false, nil
	case err != bufio.ErrBufferFull:
		return nil, false, err
	}
	l.number++
	l.offset += int64(len(line))
	for err == bufio.ErrBufferFull {
		line, err = l.br.ReadSlice('\n')
		l.offset += int64(len(line))
	}
	if err != nil && err != io.EOF {
		return nil, false, err
	}
	return nil, true, errLongLine
}
