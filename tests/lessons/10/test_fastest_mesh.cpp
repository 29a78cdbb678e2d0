// Which mesh lesson 10 reports as the fastest that fits.

#include <map>
#include <string>

#include <fmt/format.h>

#include "lessons/parallel/mesh/mesh_forecast.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Bytes and seconds of a step by mesh, as "dp tp pp"; what is not in it has no forecast.
using Forecasts = std::map<std::string, std::pair<std::int64_t, double>>;

/// The fastest mesh of four ranks, as "dp tp pp"; empty if there is none.
std::string fastest(const Forecasts& forecasts, std::int64_t capacity)
{
  const auto forecast = [&](const Layout& l) -> std::optional<MeshForecast> {
    const auto found = forecasts.find(fmt::format("{} {} {}", l.dp, l.tp, l.pp));
    if (found == forecasts.end()) return {};
    return MeshForecast{l, found->second.first, found->second.second};
  };
  const std::optional<MeshForecast> best = fastest_mesh(4, capacity, forecast);
  if (!best) return "";
  const Layout& l = best->layout;
  const std::string name = fmt::format("{} {} {}", l.dp, l.tp, l.pp);
  CHECK(forecasts.at(name) == std::pair(best->bytes, best->step_s));
  return name;
}

const Forecasts usual{{"4 1 1", {800, 1.0}}, {"2 1 2", {500, 1.5}}, {"1 1 4", {300, 2.5}},
                      {"2 2 1", {450, 1.2}}, {"1 2 2", {250, 2.0}}, {"1 4 1", {200, 3.0}}};

}  // namespace

TEST_CASE("fastest_mesh: the fastest of those that fit, to the last byte")
{
  CHECK(fastest(usual, 1000) == "4 1 1");
  CHECK(fastest(usual, 800) == "4 1 1");
  CHECK(fastest(usual, 799) == "2 2 1");
  CHECK(fastest(usual, 450) == "2 2 1");
  CHECK(fastest(usual, 449) == "1 2 2");
  CHECK(fastest(usual, 250) == "1 2 2");
  CHECK(fastest(usual, 249) == "1 4 1");
  CHECK(fastest(usual, 200) == "1 4 1");
}

TEST_CASE("fastest_mesh: none if nothing fits, or no mesh has a forecast")
{
  CHECK(fastest(usual, 199).empty());
  CHECK(fastest({}, 1000).empty());
}

TEST_CASE("fastest_mesh: meshes without a forecast are passed over")
{
  Forecasts some = usual;
  some.erase("4 1 1");
  CHECK(fastest(some, 1000) == "2 2 1");
  CHECK(fastest({{"1 4 1", {200, 3.0}}}, 1000) == "1 4 1");
}

TEST_CASE("fastest_mesh: of equally fast ones that with the fewest bytes, of these the first")
{
  CHECK(fastest({{"4 1 1", {300, 1.0}}, {"2 1 2", {200, 1.0}}, {"1 2 2", {250, 1.0}}}, 1000) == "2 1 2");
  CHECK(fastest({{"4 1 1", {300, 1.0}}, {"2 1 2", {300, 1.0}}, {"1 2 2", {300, 1.0}}}, 1000) == "4 1 1");
  CHECK(fastest({{"2 1 2", {300, 1.0}}, {"1 2 2", {200, 1.0}}, {"1 4 1", {200, 1.0}}}, 1000) == "1 2 2");
  CHECK(fastest({{"4 1 1", {300, 1.0}}, {"1 4 1", {100, 1.1}}}, 1000) == "4 1 1");  // fewer bytes are not faster
}
