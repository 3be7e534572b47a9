package policy

// shape says which values a key takes: for the schema and the reference.
type shape struct {
	kind   shapeKind
	enum   []string     // of shapeWord: the only values; with others: values allowed besides
	item   *shape       // of shapeList and shapeTable
	object func() []key // of shapeObject
	named  []string     // of shapeTable: the only names; nil: any
	or     *shape       // another shape that is accepted
	single bool         // of shapeList: a single item stands for a list of one
}

type shapeKind int

const (
	shapeWord   shapeKind = iota
	shapeText             // any scalar, taken as it is written
	shapeSize             // a size with a unit
	shapeTime             // a time with a unit
	shapeCount            // a whole number
	shapeNumber           // a number
	shapeSwitch           // true or false
	shapeList             // a list of item
	shapeTable            // a mapping from names to item
	shapeObject           // a mapping with the keys of object
)

func wordOf(values ...string) shape { return shape{kind: shapeWord, enum: values} }

func listOf(item shape) shape { return shape{kind: shapeList, item: &item} }

func tableOf(item shape, named ...string) shape {
	return shape{kind: shapeTable, item: &item, named: named}
}

func objectOf(keys func() []key) shape { return shape{kind: shapeObject, object: keys} }

// either accepts two shapes.
func either(a, b shape) shape {
	a.or = &b
	return a
}

// orWords accepts words besides.
func (s shape) orWords(values ...string) shape {
	s.enum = values
	return s
}

func plain(kind shapeKind) shape { return shape{kind: kind} }
