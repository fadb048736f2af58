// Package secret holds bytes that cannot be printed, compared or marshalled, and takes them out of streams.
package secret
