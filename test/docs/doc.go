// Package docs holds the documents to the code: every limit stands in
// docs/limits.md with its value, the printed Program is what compiles from the
// default policy, tests that documents name exist, links lead somewhere. It owns
// no part of the product and starts nothing.
package docs
