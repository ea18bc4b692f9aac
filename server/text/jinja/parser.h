#pragma once

#include <string_view>

#include "server/text/jinja/ast.h"

namespace recurve::jinja {

// The statements of a template. Whatever is not supported (a tag, filter, test, function or method)
// is an Error that names it and its line, whether it would be reached or not.
Block parse(std::string_view source);

}  // namespace recurve::jinja
