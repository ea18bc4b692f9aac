// recurve-bench: measures, and prints each number next to the floor or the target.
#include <cstdio>
#include <exception>

#include "server/startup/version.h"
#include "tests/bench/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Benchmarks of Recurve. Rows go to standard output.");
  app.set_version_flag("--version", recurve::version_line("recurve-bench"),
                       "Print the version and the commit and exit");
  bool json = false;
  app.add_flag("--json", json, "Print one JSON object a line instead of a table");
  app.require_subcommand(1);
  app.fallthrough();
  recurve::bench::add_step(app, json);
  recurve::bench::add_engine(app, json);
  recurve::bench::add_sessions(app, json);
  recurve::bench::add_kernel(app, json);
  recurve::bench::add_recurrence(app, json);
  recurve::bench::add_attention(app, json);
  recurve::bench::add_drift(app, json);
  recurve::bench::add_prefix(app, json);
  recurve::bench::add_load(app, json);
  recurve::bench::add_tenants(app, json);
  recurve::bench::add_pages(app, json);
#if RECURVE_SERVER
  recurve::bench::add_overhead(app, json);
  recurve::bench::add_service(app, json);
  recurve::bench::add_idle(app, json);
  recurve::bench::add_constraint(app, json);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recurve-bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
