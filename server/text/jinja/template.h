#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/jinja/run.h"
#include "server/text/jinja/value.h"

namespace recurve::jinja {

// A template in the part of Jinja that chat templates use, with the meaning it has in transformers'
// apply_chat_template: Jinja's sandbox with trim_blocks, lstrip_blocks and loop controls, and
// transformers' tojson, raise_exception, strftime_now and {% generation %}.
//
// Understood: text, {{ }}, comments, raw; if, for (with filter, else, break, continue), set (also
// of blocks and namespace members), filter, macro at the top, generation; all literals and
// operators but bitwise ones and % on strings; slices; the filters, tests, methods and functions
// that the tables in filters.cc, list_filters.cc, predicates.cc, methods.cc and functions.cc name.
// Integers have 64 bits.
//
// Constant after construction: render() may be called from any thread.
class Template {
 public:
  using Variables = std::map<std::string, Value, std::less<>>;
  // The first that has a name gives its value.
  using Layers = std::vector<const Variables*>;

  // Throws Error for what is not well formed or not understood.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;

  // The text, and where its bytes come from. `now` is what strftime_now tells. Throws Error where
  // the template fails, refuses what it is given, or exceeds the limits, and WorkUnwanted as `work`
  // has it. A Variables value that holds a generator is used up.
  Text render(const Layers& variables, const std::tm& now, const Limits& limits = {},
              const WorkLimits& work = {}) const;

 private:
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace recurve::jinja
