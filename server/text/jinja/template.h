#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/jinja/run.h"
#include "server/text/jinja/value.h"

namespace recurve::jinja {

// A template in the subset of Jinja that chat templates use. It has the meaning of transformers'
// apply_chat_template: Jinja's sandbox with trim_blocks, lstrip_blocks and loop controls, and with
// tojson, raise_exception, strftime_now and {% generation %}.
//
// Supported: text, {{ }}, comments, raw; if, for (with filter, else, break, continue), set (also
// for blocks and namespace members), filter, macro at the top level, generation; all literals and
// operators except bitwise ones and % on strings; slices; the filters, tests, methods and functions
// in the tables of filters.cc, list_filters.cc, methods.cc and callables.cc. Integers have 64 bits.
//
// Constant after construction: render() may be called from any thread.
class Template {
 public:
  using Variables = std::map<std::string, Value, std::less<>>;
  // A name has the value of the first that contains it.
  using Layers = std::vector<const Variables*>;

  // Throws Error for a template that is not well formed or not supported.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;

  // The text, and the origin of its bytes. `now` is the time of strftime_now. Throws Error if the
  // template fails, calls raise_exception or exceeds the limits, and WorkUnwanted if `work` says
  // so. A generator in the variables is exhausted.
  Text render(const Layers& variables, const std::tm& now, const Limits& limits = {},
              const WorkLimits& work = {}) const;

 private:
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace recurve::jinja
