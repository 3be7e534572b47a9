package policy

// secretNames are files and directories below a home that no view shows,
// whatever the profile allows: keys, tokens, cookies. The list is data, printed
// in docs/policy.md.
func secretNames() []string {
	return []string{
		".ssh", ".gnupg", ".pki", ".password-store", ".netrc", ".authinfo", ".authinfo.gpg", ".pgpass", ".my.cnf",
		".aws", ".azure", ".oci", ".config/gcloud", ".config/doctl", ".config/hcloud", ".config/scw", ".linode-cli", ".config/linode-cli",
		".boto", ".s3cfg", ".config/rclone", ".terraform.d/credentials.tfrc.json", ".terraformrc", ".pulumi/credentials.json", ".vault-token",
		".kube", ".docker/config.json", ".config/containers/auth.json", ".config/helm/registry/config.json", ".fly",
		".git-credentials", ".config/git/credentials", ".config/gh", ".config/glab-cli", ".config/hub",
		".npmrc", ".yarnrc.yml", ".pypirc", ".config/pypoetry/auth.toml", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml", ".gradle/gradle.properties", ".composer/auth.json", ".config/composer/auth.json", ".nuget/NuGet",
		".cache/huggingface/token", ".huggingface/token", ".kaggle", ".config/openai", ".anthropic",
		".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth_creds.json",
		".mozilla", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".thunderbird",
		".local/share/keyrings", ".local/share/kwalletd", ".config/age", ".config/sops", ".config/op", ".config/Bitwarden CLI",
		".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history", ".node_repl_history", ".local/share/fish/fish_history",
	}
}

// secretPaths are the same on the host at large.
func secretPaths() []string {
	return []string{
		"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d", "/etc/security/opasswd",
		"/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/krb5.keytab", "/etc/wireguard", "/etc/NetworkManager/system-connections", "/etc/wpa_supplicant",
		"/etc/kubernetes", "/etc/rancher", "/etc/docker/key.json", "/etc/letsencrypt", "/etc/credstore", "/etc/credstore.encrypted",
		"/root", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/rancher", "/var/lib/pinfold",
		"/var/lib/systemd/credential.secret", "/var/spool/cron", "/run/secrets", "/run/credentials", "/run/user",
		"/run/docker.sock", "/run/containerd", "/run/podman", "/run/crio", "/run/dbus", "/run/systemd/private", "/run/pinfold", "/run/nscd",
	}
}

// unwritableNames are files and directories below a home or a workspace's home
// that run code or steer tools later, outside of the pen: they are never
// writable, also inside a writable tree.
func unwritableNames() []string {
	return []string{
		".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".config/fish",
		".pam_environment", ".xprofile", ".xsession", ".xinitrc", ".Xresources", ".config/autostart", ".config/systemd", ".config/environment.d", ".local/share/systemd",
		".gitconfig", ".config/git", ".vimrc", ".vim", ".config/nvim", ".emacs", ".emacs.d", ".tmux.conf", ".config/tmux", ".screenrc", ".gdbinit", ".pythonrc", ".pystartup", ".curlrc", ".wgetrc",
		".claude", ".claude.json", ".codex", ".gemini", ".cursor", ".config/opencode", ".aider.conf.yml", ".continue", ".windsurf", ".mcp.json", ".vscode-server", ".config/Code",
		".local/bin", "bin",
	}
}

// unwritablePaths are the same on the host at large: what a later start of the
// system, a user or the daemon itself reads.
func unwritablePaths() []string {
	return []string{
		"/etc/pinfold", "/etc/systemd", "/usr/lib/systemd", "/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/init.d", "/etc/cron.d", "/etc/crontab",
		"/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/environment", "/etc/pam.d", "/etc/passwd", "/etc/group", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/sysctl.d", "/etc/udev", "/etc/modprobe.d",
		"/var/log/pinfold", "/usr/lib/pinfold", "/usr/libexec/pinfold", "/proc", "/sys", "/boot", "/dev",
	}
}

// deniedEnv are variables that make a program load or run something else: a
// request may set one only if its profile lists it.
func deniedEnv() []string {
	return []string{
		"LD_*", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "NLSPATH", "GETCONF_DIR", "HOSTALIASES", "RES_OPTIONS", "LOCALDOMAIN", "RESOLV_HOST_CONF",
		"BASH_ENV", "BASH_FUNC_*", "BASHOPTS", "SHELLOPTS", "ENV", "PS4", "PROMPT_COMMAND", "IFS", "ZDOTDIR", "FPATH", "SHELL",
		"PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONUSERBASE", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR",
		"NODE_OPTIONS", "NODE_PATH", "NPM_CONFIG_*", "npm_config_*", "ELECTRON_RUN_AS_NODE",
		"PERL5OPT", "PERL5LIB", "PERLLIB", "PERL5DB", "RUBYOPT", "RUBYLIB", "RUBYSHELL", "LUA_INIT*", "LUA_PATH*", "LUA_CPATH*", "PHPRC", "PHP_INI_SCAN_DIR",
		"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "DOTNET_STARTUP_HOOKS", "DOTNET_ADDITIONAL_DEPS", "CORECLR_*", "COR_*", "ERL_FLAGS", "ERL_AFLAGS", "ERL_ZFLAGS", "R_PROFILE*", "R_ENVIRON*", "JULIA_LOAD_PATH",
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_ASKPASS", "GIT_PROXY_COMMAND", "GIT_CONFIG*", "GIT_DIR", "GIT_WORK_TREE",
		"SSH_ASKPASS", "SSH_AUTH_SOCK", "SUDO_ASKPASS", "GPG_AGENT_INFO", "DBUS_*", "DOCKER_HOST", "CONTAINER_HOST",
		"EDITOR", "VISUAL", "BROWSER", "PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAKEFILES", "GOFLAGS", "GOROOT", "GOTOOLDIR", "GOENV", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER",
		"OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "INPUTRC", "VIMINIT", "EXINIT", "MYVIMRC", "AWKPATH", "AWKLIBPATH", "TAR_OPTIONS", "QT_PLUGIN_PATH", "GTK_MODULES", "GTK_PATH", "GIO_EXTRA_MODULES",
	}
}
