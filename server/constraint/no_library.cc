#include "server/constraint/constraint_library.h"

namespace recurve {
namespace {

class NoLibrary final : public ConstraintLibrary {
 public:
  std::shared_ptr<const Constraint> compile(const ConstraintText&, const CompileBounds&) override {
    throw ConstraintRefused(
        "this server was built without structured output (RECURVE_GRAMMARS): ask for the answer "
        "without a constraint");
  }
};

}  // namespace

std::unique_ptr<ConstraintLibrary> make_constraint_library(const TokenTexts&, CacheBytes) {
  return std::make_unique<NoLibrary>();
}
bool has_constraint_library() { return false; }

}  // namespace recurve
