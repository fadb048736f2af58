package policy

import "errors"

// Voice is the shape in which a host's clients expect a refusal, so that they print it and stop instead of retrying.
// The zero Voice is plain text, which every client survives.
type Voice uint8

const (
	VoicePlain     Voice = iota // 403, text/plain
	VoiceAnthropic              // 400, {"type":"error","error":{"type":…,"message":…}}
	VoiceOpenAI                 // 400, {"error":{"message":…,"type":…,"code":…}}
	VoiceGoogle                 // 400, {"error":{"code":…,"message":…,"status":…}}
	VoiceGit                    // an ERR pkt-line or report-status to git, else 403, text/plain
	VoiceJSON                   // 403, {"message":…}
	numVoices
)

var voiceNames = [numVoices]string{"plain", "anthropic", "openai", "google", "git", "json"}

// ParseVoice reads a voice's name as presets write it.
func ParseVoice(s string) (Voice, error) {
	for v := range numVoices {
		if voiceNames[v] == s {
			return v, nil
		}
	}
	return VoicePlain, errors.New("voice: one of plain, anthropic, openai, google, git, json")
}

func (v Voice) String() string {
	if v < numVoices {
		return voiceNames[v]
	}
	return "unknown"
}

// UpgradeStatus is the HTTP status that refuses a protocol upgrade in this voice, zero when it is refused like any other request.
// OpenAI's clients fall back from WebSocket to server-sent events on 426 within a second; any other status costs the turn or seven seconds.
func (v Voice) UpgradeStatus() int {
	if v == VoiceOpenAI {
		return 426
	}
	return 0
}
