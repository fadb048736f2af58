package preset_test
import ("testing";"postern/internal/operator/preset")
func TestLoadAll(t *testing.T){ for _,n:=range preset.Names(){ if _,err:=preset.Load(n);err!=nil{t.Error(err)} } }
