package config

import "path/filepath"

// Empty is the profile of a session without a policy file: it refuses everything, in each host's words.
func Empty() (*Compiled, error) {
	l, err := newLoader()
	if err != nil {
		return nil, err
	}
	f, err := l.parse(filepath.Join(l.work, Name), []byte("version: 1\nprofiles: {default: {}}\n"))
	if err != nil {
		return nil, err
	}
	return f.Profile("default")
}
