package ruleset

// sharedParents are names that are no public suffix themselves but hold some, or give every customer a name below them:
// a wildcard over one allows anybody's storage or function.
func sharedParents() map[string]bool {
	return map[string]bool{
		"amazonaws.com": true, "amazonaws.com.cn": true, "awsapprunner.com": true, "on.aws": true, "cloudfront.net": true,
		"googleapis.com": true, "googleusercontent.com": true, "run.app": true, "appspot.com": true, "firebaseio.com": true,
		"windows.net": true, "core.windows.net": true, "azure.com": true, "azure.net": true, "azurewebsites.net": true, "azureedge.net": true,
		"cloudflare.net": true, "r2.dev": true, "digitaloceanspaces.com": true, "backblazeb2.com": true, "fastly.net": true, "akamaihd.net": true,
	}
}
