# Prints of a verbose log of tests what the failed ones said, and all of any other log.
/^=== (RUN|NAME|CONT|PAUSE) / { name = $3; next }
/^ *--- (PASS|FAIL|SKIP): / {
	if ($2 == "FAIL:") printf "%s\n%s", $0, said[$3]
	delete said[$3]
	name = ""
	next
}
{ said[name] = said[name] $0 "\n" }
END { printf "%s", said[name] }
