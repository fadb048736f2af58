package audit

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

func BenchmarkCommit(b *testing.B) {
	for _, who := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", who), func(b *testing.B) {
			var syncs countSyncs
			l := open(b, Config{Dir: auditDir(b), wrap: syncs.wrap})
			r := allowed("api.example.com")
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range who {
				n := b.N / who
				if i < b.N%who {
					n++
				}
				wg.Go(func() {
					for range n {
						if err := l.Commit(context.Background(), r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/float64(syncs.n.Load()), "records/sync")
			mustClose(b, l)
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	l := open(b, Config{Dir: auditDir(b)})
	r := allowed("api.example.com")
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Append(r); err != nil {
			b.Fatal(err)
		}
	}
	mustClose(b, l)
}
