#include "lessons/parallel/mesh/mesh_layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"

namespace rankwise {

Layout MeshOptions::layout(int ranks) const
{
  int rest = ranks;  // for the degrees that are not given
  for (const int degree : {dp, tp, pp})
    if (degree > 0) rest /= degree;
  const auto two_of_rest = [&rest] {
    const int two = rest % 2 == 0 ? 2 : 1;
    rest /= two;
    return two;
  };
  Layout layout{.dp = dp, .tp = tp, .pp = pp};
  if (tp == 0) layout.tp = pp > 0 && dp > 0 ? rest : two_of_rest();
  if (pp == 0) layout.pp = dp > 0 ? rest : two_of_rest();
  if (dp == 0) layout.dp = rest;
  return layout;
}

SplitOptions MeshOptions::split(int ranks) const
{
  SplitOptions options;
  options.tp = static_cast<int>(layout(ranks).tp);
  options.sequence_parallel = sequence_parallel;
  options.regather = regather;
  return options;
}

MeshOptions MeshOptions::with(const Layout& degrees) const
{
  MeshOptions other = *this;
  other.dp = static_cast<int>(degrees.dp);
  other.tp = static_cast<int>(degrees.tp);
  other.pp = static_cast<int>(degrees.pp);
  if (other.tp == 1) other.sequence_parallel = other.regather = false;
  return other;
}

void declare(OptionTable& table, MeshOptions& o)
{
  const std::string group = "3D parallelism";
  table.add(group, "dp", o.dp, "replicas of the model, which divide the batch; 0: the number of ranks / (tp pp)");
  table.add(group, "tp", o.tp,
            "ranks that divide every layer; 0: two if the remaining ranks are even, or all of them");
  table.add(group, "pp", o.pp,
            "ranks with a run of layers each; 0: two if the remaining ranks are even, or all of them");
  table.add(group, "zero", o.zero, "1: optimizer states are sharded among replicas; 0: replicated");
  table.add(group, "sequence-parallel", o.sequence_parallel,
            "between the divided layers each rank has 1/tp of each sequence");
  table.add(group, "regather", o.regather,
            "keep only this rank's normalised rows, and gather all again in the backward pass");
  table.add(group, "show-groups", o.show_groups, "print the coordinates and the groups of all ranks");
}

std::vector<Layout> factorisations(int ranks)
{
  std::vector<Layout> all;
  for (int tp = 1; tp <= ranks; ++tp)
    for (int pp = 1; tp * pp <= ranks; ++pp)
      if (ranks % (tp * pp) == 0) all.push_back({.dp = ranks / (tp * pp), .tp = tp, .pp = pp});
  return all;
}

namespace {

/// The first few meshes of this number of ranks, as advice.
std::string possible_degrees(int ranks)
{
  const std::vector<Layout> all = factorisations(ranks);
  std::vector<std::string> texts;
  for (const Layout& l : all)
    if (texts.size() < 10) texts.push_back(fmt::format("{} {} {}", l.dp, l.tp, l.pp));
  return fmt::format("Degrees whose product is {}, as dp tp pp: {}{}.", ranks, fmt::join(texts, ", "),
                     texts.size() < all.size() ? ", ..." : "");
}

}  // namespace

void check_mesh_options(const MeshOptions& options, int ranks)
{
  std::vector<std::string> asked;
  std::int64_t product = 1;
  for (const auto& [name, value] : {std::pair("dp", options.dp), {"tp", options.tp}, {"pp", options.pp}}) {
    if (value < 0)
      throw UserError(fmt::format("--{}={} is not a number of ranks.", name, value),
                      "Use the number of ranks along this axis, or 0 for the default.");
    if (value > ranks)
      throw UserError(fmt::format("--{}={} is more than the ranks that were started, {}.", name, value, ranks),
                      possible_degrees(ranks));
    if (value == 0) continue;
    asked.push_back(fmt::format("--{}={}", name, value));
    product *= value;
  }
  if (options.zero != 0 && options.zero != 1)
    throw UserError(fmt::format("--zero={} is not one of its values.", options.zero),
                    "Use 1 to shard optimizer states among replicas, or 0 to keep all of them on each.");
  const bool leaves_some_open = asked.size() < 3;
  if (leaves_some_open ? ranks % product == 0 : product == ranks) return;
  const std::string degrees = fmt::format("{}", fmt::join(asked, " "));
  throw UserError(leaves_some_open
                      ? fmt::format("With {} the {} ranks that were started form no mesh: {} does not divide them.",
                                    degrees, ranks, product)
                      : fmt::format("{} make {} ranks, but {} were started.", degrees, product, ranks),
                  possible_degrees(ranks));
}

std::string describe(const Layout& layout, int cp, int ep)
{
  const std::string text = fmt::format("dp={} tp={} pp={}", layout.dp, layout.tp, layout.pp);
  return cp == 0 ? text : text + fmt::format(" cp={} ep={}", cp, ep);
}

std::vector<Axis> axes_of(const Layout& layout)
{
  return {{"pp", static_cast<int>(layout.pp)},
          {"dp", static_cast<int>(layout.dp)},
          {"tp", static_cast<int>(layout.tp)}};
}

MeshCoordinates place_of(const Layout& layout, int rank)
{
  const std::vector<int> coordinates = coordinates_of(axes_of(layout), rank);
  return {.dp = coordinates[1], .tp = coordinates[2], .pp = coordinates[0]};
}

}  // namespace rankwise
