package daemon

import "postern/internal/sandbox/inspect"

// outsideChecks are those that are seen from outside of the sandbox: by the gateway, and by what does not arrive.
func outsideChecks() []inspect.Check {
	const again = "please report this, with the output of `postern doctor --json`"
	const arrives = "a service of the host answers the sandbox, around the gateway"
	return []inspect.Check{
		{ID: "policy.file", Title: "the policy is read", Essential: true, Means: "postern run refuses to start, or refuses everything", Remedy: "postern policy check FILE says what is wrong with it"},
		{ID: "policy.credentials", Title: "the sources of the profile's credentials are there and private", Means: "requests that need the credential are refused", Remedy: "chmod 600 the file, and own it"},

		{ID: "machine.kernel", Title: "the kernel is new enough", Essential: true, Means: "the sandbox cannot be made", Remedy: "Linux 5.14 or newer"},
		{ID: "machine.user_namespaces", Title: "user namespaces are permitted", Essential: true, Means: "the sandbox cannot be made", Remedy: again},
		{ID: "machine.apparmor", Title: "AppArmor permits postern its user namespace", Essential: true, Means: "capabilities are refused inside the new user namespace, so it cannot be set up", Remedy: again},
		{ID: "machine.idmap", Title: "idmapped mounts work", Means: "files in mounts keep their owner's ids, and writable mounts of other users' directories are errors",
			Remedy: "keep the directory on ext4, xfs, btrfs or tmpfs, or run postern as its owner"},

		{ID: "sandbox.start", Title: "a sandbox starts", Essential: true, Means: "postern run cannot run anything here", Remedy: again},
		{ID: "sandbox.directory", Title: "the working directory can be mounted", Means: "postern run refuses to start in this directory", Remedy: "run postern in the directory of a project"},

		{ID: "network.host_tcp", Title: "no TCP server of the host is reached", Essential: true, Means: arrives, Remedy: again},
		{ID: "network.host_udp", Title: "no UDP server of the host is reached", Essential: true, Means: arrives, Remedy: again},
		{ID: "network.host_unix", Title: "no Unix socket of the host is reached", Essential: true, Means: arrives, Remedy: again},

		{ID: "limits.cgroup", Title: "memory and processes of the sandbox are bounded together", Means: "a sandbox can use up the machine's memory",
			Remedy: "start postern in a delegated cgroup: systemd-run --user --scope -p Delegate=yes postern run …"},

		{ID: "gateway.dumpable", Title: "the gateway's memory is closed to other processes", Essential: true, Means: "a process of the same user can read credentials out of the gateway", Remedy: again},
		{ID: "gateway.core", Title: "the gateway leaves no core file", Essential: true, Means: "a crash writes credentials to disk", Remedy: again},
		{ID: "gateway.identity", Title: "the kernel says who is behind the listeners", Essential: true, Means: "another process could speak as the sandbox", Remedy: again},
		{ID: "gateway.audit", Title: "the audit log is written", Essential: true, Means: "postern run refuses to start: what cannot be recorded may not happen", Remedy: "make the directory yours, with mode 0700, on a disk with room"},
		{ID: "gateway.audit_chain", Title: "the audit log is whole", Essential: true, Means: "records of earlier sessions were changed or are missing", Remedy: "postern audit verify names the first fault of each file"},
	}
}
