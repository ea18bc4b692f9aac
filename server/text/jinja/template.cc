#include "server/text/jinja/template.h"

#include "server/text/jinja/evaluator.h"
#include "server/text/jinja/parser.h"

namespace recurve::jinja {

struct Template::Parsed {
  Block block;
};

Template::Template(std::string_view source)
    : parsed_(std::make_unique<const Parsed>(Parsed{parse(source)})) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Text Template::render(const Layers& variables, const std::tm& now, const Limits& limits,
                      const WorkLimits& work) const {
  Run run(limits, now, work);
  return Evaluator(run, variables).render(parsed_->block);
}

}  // namespace recurve::jinja
