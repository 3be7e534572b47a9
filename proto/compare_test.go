package proto_test

import "reflect"

type reflectType = reflect.Type
