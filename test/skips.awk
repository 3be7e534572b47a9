# Prints of verbose logs of tests which were left out, each with the reason that it gave.
/^=== (RUN|NAME|CONT|PAUSE) / { name = $3; next }
/^ *--- SKIP: / { print $3 ": " said[$3] }
/^ *--- / { delete said[$3]; next }
{ sub(/^ +/, ""); said[name] = $0 }
