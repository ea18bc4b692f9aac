#pragma once
#include <CLI/CLI.hpp>

namespace recurve::bench {

// Each adds its subcommand, with what to do when it is chosen. `json`: see Report.
void add_step(CLI::App& app, const bool& json);
void add_engine(CLI::App& app, const bool& json);
void add_sessions(CLI::App& app, const bool& json);
void add_kernel(CLI::App& app, const bool& json);
void add_recurrence(CLI::App& app, const bool& json);
void add_attention(CLI::App& app, const bool& json);
void add_drift(CLI::App& app, const bool& json);
void add_prefix(CLI::App& app, const bool& json);
void add_load(CLI::App& app, const bool& json);
void add_tenants(CLI::App& app, const bool& json);
void add_pages(CLI::App& app, const bool& json);
#if RECURVE_SERVER
void add_overhead(CLI::App& app, const bool& json);
void add_service(CLI::App& app, const bool& json);
void add_idle(CLI::App& app, const bool& json);
void add_constraint(CLI::App& app, const bool& json);
#endif

}  // namespace recurve::bench
