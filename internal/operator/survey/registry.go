package survey

import (
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"postern/internal/core/gate"
)

// lookForRegistries reads the user's own settings of npm and pip. A repository's .npmrc is not asked: it could name anybody's host.
func (f *Found) lookForRegistries(home string) {
	if src, err := readRegular(filepath.Join(home, ".npmrc"), maxGitConfig); err == nil {
		for line := range strings.Lines(string(src)) {
			key, value, _ := strings.Cut(line, "=")
			if key = strings.TrimSpace(key); key == "registry" || strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry") {
				f.addRegistry("npm", "~/.npmrc", value)
			}
		}
	}
	for _, rel := range []string{".config/pip/pip.conf", ".pip/pip.conf"} {
		src, err := readRegular(filepath.Join(home, rel), maxGitConfig)
		if err != nil {
			continue
		}
		key := ""
		for line := range strings.Lines(string(src)) {
			value := line
			if before, after, ok := strings.Cut(line, "="); ok && !strings.Contains(before, "://") {
				key, value = strings.TrimSpace(before), after // a value may go on in indented lines
			}
			if key == "index-url" || key == "extra-index-url" {
				for _, one := range strings.Fields(value) {
					f.addRegistry("pip", "~/"+rel, one)
				}
			}
		}
	}
}

// addRegistry takes the host of a registry's URL. Public ones have presets.
func (f *Found) addRegistry(tool, file, raw string) {
	u, err := url.Parse(strings.Trim(strings.TrimSpace(raw), `"'`))
	if err != nil || u.Hostname() == "" {
		return
	}
	h, err := gate.ParseHost(u.Hostname())
	if err != nil || public(h) {
		return
	}
	if u.Scheme != "https" {
		f.Notes = append(f.Notes, "the registry "+h.String()+" of "+file+" is not reached by https and was left out")
		return
	}
	port := gate.HTTPS.DefaultPort()
	if u.Port() != "" {
		if port, err = gate.ParsePort(u.Port()); err != nil {
			return
		}
	}
	r := Registry{h, port, tool, file}
	if !slices.ContainsFunc(f.Registries, func(o Registry) bool { return o.Host == h && o.Port == port }) {
		f.Registries = append(f.Registries, r)
	}
}

// public reports whether a preset allows the host already.
func public(h gate.Host) bool {
	for _, owner := range []string{"npmjs.org", "pypi.org", "pythonhosted.org"} {
		if h.String() == owner || strings.HasSuffix(h.String(), "."+owner) {
			return true
		}
	}
	return false
}
