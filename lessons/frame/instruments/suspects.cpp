#include "lessons/frame/instruments/suspects.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rankwise {

MergedRecord::MergedRecord(const Record& r) : record(r)
{
  for (const RecordEntry& e : r.entries) {
    MergedNote& note = notes[{e.step, e.phase, e.order, e.tensor, e.sequences}];
    const auto same_part = [&](const RecordEntry* p) {
      return p->rows.first == e.rows.first && p->rows.count == e.rows.count &&
             p->columns.first == e.columns.first && p->columns.count == e.columns.count;
    };
    const auto copy = std::ranges::find_if(note.parts, same_part);
    if (copy == note.parts.end())
      note.sum += e.value;
    else
      note.copies.emplace_back(*copy, &e);
    note.parts.push_back(&e);
  }
}

std::string text_of(const std::vector<Range>& runs)
{
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < runs.size();) {
    const std::int64_t first = runs[i].first;
    std::int64_t end = runs[i].end();
    while (++i < runs.size() && runs[i].first == end) end = runs[i].end();
    texts.push_back(end == first + 1 ? fmt::format("{}", first) : fmt::format("{} to {}", first, end - 1));
  }
  return fmt::format("sequence{} {}", texts.size() == 1 && texts[0].find(' ') == std::string::npos ? "" : "s",
                     fmt::join(texts, ", "));
}

namespace {

/// True if two tensors are the same but for rounding.
bool nearly(const Condensed& a, const Condensed& b)
{
  constexpr double part = 1e-4;
  return distance(a, b) <= part * std::sqrt(std::max(a.squares, b.squares)) && std::isfinite(a.squares + b.squares);
}

Condensed sum_of(std::initializer_list<std::pair<double, const Condensed*>> terms)
{
  Condensed sum;
  for (const auto& [factor, term] : terms) {
    sum.add_projections(factor, *term);
    sum.squares += term->squares;  // an upper bound is enough for nearly()
  }
  return sum;
}

/// One difference, and what may explain it.
class Suspicion {
 public:
  Suspicion(const MergedRecord& right, const MergedRecord& other, const RecordKey& key)
      : right_(right),
        other_(other),
        key_(key),
        a_(right.notes.at(key).sum),
        b_(other.notes.at(key).sum),
        note_(other.notes.at(key))
  {
  }

  std::vector<std::string> found()
  {
    if (!std::isfinite(b_.squares)) return {"It is not finite."};
    copies();
    if (b_.squares == 0) say("It is zero: not computed, or cleared.");
    stale();
    other_places();
    other_sequence();
    if (key_.phase == StepPhase::sums) contributions();
    if (said_.empty()) factor();
    if (said_.empty()) parts();
    if (said_.empty()) inputs();
    if (said_.empty()) say("None of the usual mistakes explains it.");
    return said_;
  }

 private:
  template <class... Values>
  void say(fmt::format_string<Values...> text, Values&&... values)
  {
    said_.push_back(fmt::format(text, std::forward<Values>(values)...));
  }

  const Condensed* of(const MergedRecord& record, const RecordKey& key) const
  {
    const auto i = record.notes.find(key);
    return i == record.notes.end() ? nullptr : &i->second.sum;
  }

  void copies()
  {
    for (const auto& [one, another] : note_.copies)
      if (one->value.digest != another->value.digest)
        return say("Ranks {} and {} have different copies of it.", one->device, another->device);
  }

  void stale()
  {
    RecordKey before = key_;
    --before.step;
    for (const MergedRecord* run : {&other_, &right_})
      if (const Condensed* old = of(*run, before))
        if (old->digest == b_.digest && key_.phase != StepPhase::norm)
          return say("It is that of step {}: stale.", before.step);
  }

  /// A part that some rank has not received, or read before it was complete.
  void parts()
  {
    const bool whole = note_.parts.size() == note_.copies.size() + 1;  // each rank has all of it
    if (whole || b_.squares == 0) return;
    RecordKey before = key_;
    --before.step;
    const auto old = other_.notes.find(before);
    for (const RecordEntry* part : note_.parts) {
      if (part->value.squares == 0)
        return say("The part of rank {} is zero: perhaps not computed, or read before it arrived.", part->device);
      if (old == other_.notes.end()) continue;
      for (const RecordEntry* then : old->second.parts)
        if (then->device == part->device && then->value.digest == part->value.digest)
          return say("The part of rank {} is that of step {}: stale, perhaps read before it arrived.", part->device,
                     before.step);
    }
  }

  /// The right numbers, elsewhere.
  void other_places()
  {
    if (b_.squares == 0 || a_.digest == b_.digest) return;
    if (a_.numbers == b_.numbers)
      return say("It has all the right numbers, at other places: transposed, or shards in another order.");
    for (std::size_t i = 0; i < note_.parts.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const RecordEntry &one = *note_.parts[j], &two = *note_.parts[i];
        if (one.value.squares > 0 && one.value.numbers == two.value.numbers && one.value.digest != two.value.digest)
          return say("Ranks {} and {} have the same numbers for two parts: a shard that is shifted.", one.device,
                     two.device);
      }
  }

  /// Rows of another sequence: a shard that is shifted, or sequences that were dealt in another order.
  void other_sequence()
  {
    if (key_.sequences.count != 1) return;
    for (const auto& [key, note] : right_.notes)
      if (key.same_tensor(key_) && key.sequences.first != key_.sequences.first && note.sum.digest == b_.digest)
        return say("Sequence {} has the values of sequence {}.", key_.sequences.first, key.sequences.first);
  }

  /// A sum of gradients that lacks some terms, or has them twice.
  void contributions()
  {
    std::vector<Term> terms = terms_of_sum();
    Condensed all;
    for (const Term& t : terms) all += t.value;
    if (terms.size() < 2 || !nearly(all, a_)) return;
    const auto N = static_cast<double>(other_.record.devices);
    const std::string copy =
        note_.copies.empty() ? "It" : fmt::format("The copy of rank {}", note_.parts.front()->device);
    for (const auto& [name, members] : subsets(terms)) {
      Condensed part;
      for (const Term* t : members) part += t->value;
      if (nearly(part, a_) || part.squares == 0) continue;
      if (nearly(b_, part)) return say("{} is {} alone, not the sum over all.", copy, name);
      if (nearly(b_, sum_of({{1, &a_}, {-1, &part}}))) return say("{} lacks {}.", copy, name);
      if (nearly(b_, sum_of({{1, &a_}, {1, &part}}))) return say("{} has {} twice.", copy, name);
      if (N > 2 && nearly(b_, sum_of({{1, &a_}, {N - 1, &part}}))) return say("{} has {} {} times.", copy, name, N);
      if (nearly(b_, sum_of({{N, &part}}))) return say("{} is {} times {}, not the sum over all.", copy, N, name);
    }
  }

  /// A gradient that the sum adds: of the sequences of a micro-batch on a rank.
  struct Term {
    Condensed value;
    Range sequences;
    std::int64_t rank, pass;  // pass: which micro-batch of the rank
    bool from_head;
  };

  std::vector<Term> terms_of_sum() const
  {
    std::vector<Term> terms;
    const std::string& name = right_.record.names[static_cast<std::size_t>(key_.tensor)];
    std::map<std::pair<std::int64_t, bool>, std::int64_t> passes;
    const RecordKey begin{key_.step, StepPhase::backward, -1, 0, {}};
    for (auto i = other_.notes.lower_bound(begin); i != other_.notes.end(); ++i) {
      if (i->first.step != key_.step || i->first.phase != StepPhase::backward) break;
      const std::string& part = right_.record.names[static_cast<std::size_t>(i->first.tensor)];
      const bool from_head = part == name + " of the head";
      if (part != name && !from_head) continue;
      const std::int64_t rank = i->second.parts.front()->device;
      terms.push_back({i->second.sum, i->first.sequences, rank, passes[{rank, from_head}]++, from_head});
    }
    return terms;
  }

  /// The terms that belong together, with a name.
  static std::map<std::string, std::vector<const Term*>> subsets(const std::vector<Term>& terms)
  {
    std::map<std::string, std::vector<const Term*>> sets;
    for (const Term& t : terms) {
      sets[fmt::format("the gradient of rank {}", t.rank)].push_back(&t);
      sets["the gradient of " + text_of({t.sequences})].push_back(&t);
      sets[fmt::format("the gradient of micro-batch {} of each rank", t.pass)].push_back(&t);
      sets[t.from_head ? "the gradient from the output head" : "the gradient from the embedding"].push_back(&t);
    }
    return sets;
  }

  /// The right tensor times a number.
  void factor()
  {
    double ab = 0, aa = 0;
    for (std::size_t k = 0; k < a_.projected.size(); ++k)
      ab += a_.projected[k] * b_.projected[k], aa += a_.projected[k] * a_.projected[k];
    const double c = aa > 0 ? ab / aa : 0;
    if (std::abs(c - 1) < 1e-3 || !nearly(b_, sum_of({{c, &a_}}))) return;
    const double N = static_cast<double>(other_.record.devices);
    if (std::abs(c * N - 1) < 1e-3 && N > 1)
      say("It is 1/{} of the right one: a mean over the ranks instead of a sum, or divided twice.", N);
    else if (std::abs(c / N - 1) < 1e-3 && N > 1)
      say("It is {} times the right one: summed over the ranks once too often, or not divided.", N);
    else if (std::abs(c + 1) < 1e-3)
      say("It has the other sign.");
    else
      say("It is {:.4g} times the right one.", c);
  }

  /// Case of equal inputs: the computation itself differs.
  void inputs()
  {
    const bool begins = key_.phase == StepPhase::forward && key_.step > other_.record.entries.front().step;
    const bool stream = name().ends_with("stream") || name() == "embedding" || name().ends_with("heads");
    if (begins && updated_alike())
      say("The step before is equal, and so is its update: this layer reads other parameters, perhaps those before "
          "the update, or adds one more than once.");
    else if (key_.phase == StepPhase::forward && stream && other_.record.dropout > 0)
      say("All before it is equal, and dropout is on: perhaps another mask (seed, step, layer and position key "
          "it).");
    else if (key_.phase == StepPhase::update)
      say("Gradients, loss and norm are equal: the update itself differs.");
    else if (key_.phase == StepPhase::sums)
      say("The gradients of each micro-batch that both runs have are equal: the sum over them differs.");
  }

  /// True if both runs have recorded the update of the step before; it is equal, because this difference is the first.
  bool updated_alike() const
  {
    const auto last = other_.notes.lower_bound({key_.step, StepPhase::forward, -1, 0, {}});
    return last != other_.notes.begin() && std::prev(last)->first.phase == StepPhase::update;
  }

  const std::string& name() const { return right_.record.names[static_cast<std::size_t>(key_.tensor)]; }

  const MergedRecord &right_, &other_;
  const RecordKey key_;
  const Condensed &a_, &b_;
  const MergedNote& note_;
  std::vector<std::string> said_;
};

}  // namespace

std::vector<std::string> suspects(const MergedRecord& right, const MergedRecord& other, const RecordKey& key)
{
  return Suspicion(right, other, key).found();
}

}  // namespace rankwise
