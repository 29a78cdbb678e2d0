// Diagnoses from flight records of all ranks, made up here: no other process runs.

#include "common/base/error.hpp"
#include "common/messages/watchdog/diagnosis.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

constexpr double timeout_s = 3;

/// An all-reduce that this rank is in, for a little more than the time-out.
CallRecord waiting(std::int64_t number)
{
  return {.number = number,
          .name = "all-reduce",
          .algorithm = "ring",
          .type = "f32",
          .count = 1024,
          .label = "",
          .where = "step.cpp:40",
          .began_s = 3.1,
          .still_s = 3.1};
}

CallRecord ended(std::int64_t number)
{
  CallRecord call = waiting(number);
  call.ended_s = 3.1;
  call.still_s = 0;
  return call;
}

TrackRecord track(std::vector<CallRecord> last, const std::string& group = "world",
                  std::vector<int> members = {0, 1, 2, 3})
{
  const std::int64_t calls = last.empty() ? 0 : last.back().number;
  return {group, std::move(members), 0, calls, std::move(last), {}};
}

/// Four ranks that wait in collective 17 of world.
std::vector<FlightRecord> four_that_wait()
{
  FlightRecord record;
  record.tracks = {track({ended(16), waiting(17)})};
  return std::vector<FlightRecord>(4, record);
}

/// The call that a rank is in.
CallRecord& call_of(FlightRecord& record)
{
  return record.tracks[0].last.back();
}

/// A rank's record with 16 collectives made and none under way.
FlightRecord between()
{
  FlightRecord record;
  record.tracks = {track({ended(15), ended(16)})};
  return record;
}

std::string first_line(const std::string& text)
{
  return text.substr(0, text.find('\n'));
}

}  // namespace

TEST_CASE("diagnose: names the difference between calls of the same number, and each rank's call")
{
  const auto differs = [](auto&& change) {
    std::vector<FlightRecord> records = four_that_wait();
    change(call_of(records[1]));
    return first_line(diagnose(records, timeout_s));
  };
  const std::string others = ", but ranks 0, 2 and 3 call all-reduce (ring) of 1,024 f32 (step.cpp:40): ";
  CHECK(differs([](CallRecord& call) { call.count = 1000; }) ==
        "watchdog: in collective 17 of world, rank 1 calls all-reduce (ring) of 1,000 f32 (step.cpp:40)" + others +
            "the counts differ.");
  CHECK(differs([](CallRecord& call) { call.type = "bf16"; }) ==
        "watchdog: in collective 17 of world, rank 1 calls all-reduce (ring) of 1,024 bf16 (step.cpp:40)" + others +
            "the types differ.");
  CHECK_THAT(differs([](CallRecord& call) { call.algorithm = "tree"; }),
             Contains(others + "the algorithms differ."));
  CHECK_THAT(differs([](CallRecord& call) { call.root = 2; }), Contains(others + "the roots differ."));
  CHECK_THAT(differs([](CallRecord& call) {
               call.name = "broadcast";
               call.where = "step.cpp:50";
             }),
             Contains("rank 1 calls broadcast (ring) of 1,024 f32 with root 0 (step.cpp:50)" + others +
                      "rank 1 skipped a call, or made its calls in another order."));
  CHECK_THAT(differs([](CallRecord& call) { call.label = "h.2.mlp"; }),
             Contains("rank 1 calls all-reduce (ring) of 1,024 f32 for \"h.2.mlp\" (step.cpp:40)" + others));
  CHECK_THAT(differs([](CallRecord& call) {
               call.count = 1;
               call.where = "step.cpp:50";
             }),
             Contains("the counts differ, unless a call was skipped."));
}

TEST_CASE("diagnose: a rank that has left the collective already is compared too")
{
  std::vector<FlightRecord> records = four_that_wait();
  records[0].tracks[0] = track({ended(17), waiting(18)});
  records[0].tracks[0].last[0].count = 8;
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             Contains("in collective 17 of world, rank 0 calls all-reduce (ring) of 8 f32"));
}

TEST_CASE("diagnose: with as many ranks on either side neither side is blamed")
{
  std::vector<FlightRecord> records = four_that_wait();
  call_of(records[1]).name = call_of(records[3]).name = "barrier";
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             Contains("ranks 1 and 3 call barrier") && Contains("but ranks 0 and 2 call all-reduce") &&
                 Contains("the ranks do not make the same calls in the same order"));
}

TEST_CASE("diagnose: names the ranks that are missing from a collective, and what they do instead")
{
  std::vector<FlightRecord> records = four_that_wait();
  records[2] = between();
  const std::string missing =
      "watchdog: rank 2 has not called collective 17 of world, all-reduce (ring) of 1,024 f32 "
      "(step.cpp:40), in which ranks 0, 1 and 3 wait: rank 2, which ";
  CHECK(
      first_line(diagnose(records, timeout_s)) ==
      missing +
          "is in no collective; its last was collective 16 of world: all-reduce (ring) of 1,024 f32 (step.cpp:40), "
          "ended 3.1 s ago.");
  records[2].span = "backward (model.cpp:7)";
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             Contains("ended 3.1 s ago; it is at backward (model.cpp:7)."));
  records[2].finished = true;
  CHECK(first_line(diagnose(records, timeout_s)) == missing + "has ended: it left early, or skipped a call.");
  records[2] = FlightRecord{};
  records[2].answers = false;
  CHECK(first_line(diagnose(records, timeout_s)) == missing + "does not answer.");
}

TEST_CASE("diagnose: prefers a silent rank as the cause to a finished one, and that to one that computes")
{
  std::vector<FlightRecord> records = four_that_wait();
  records[0] = records[1] = records[2] = between();
  records[1].finished = true;
  CHECK_THAT(diagnose(records, timeout_s), StartsWith("watchdog: rank 1 has not called collective 17"));
  records[2].answers = false;
  records[2].tracks.clear();
  CHECK_THAT(diagnose(records, timeout_s), StartsWith("watchdog: rank 2 has not called collective 17"));
}

TEST_CASE("diagnose: a rank that waits for another waiting rank is not the cause")
{
  // Ranks 0 and 1 wait in "tp" for rank 1's backward pass; 2 and 3 wait in "world" for them.
  std::vector<FlightRecord> records(4);
  records[0].tracks = {track({ended(4)}), track({waiting(9)}, "tp", {0, 1})};
  records[1].tracks = {track({ended(4)}), track({ended(8)}, "tp", {0, 1})};
  records[2].tracks = records[3].tracks = {track({ended(4), waiting(5)}), track({ended(8)}, "tp", {2, 3})};
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             Contains("rank 1 has not called collective 9 of tp") && Contains("in which rank 0 waits"));
}

TEST_CASE("diagnose: groups of the same name with other ranks are different groups")
{
  std::vector<FlightRecord> records(4);
  records[0].tracks = {track({waiting(9)}, "tp", {0, 1})};
  records[1].tracks = {track({ended(8)}, "tp", {0, 1})};
  records[2].tracks = records[3].tracks = {track({ended(2)}, "tp", {2, 3})};
  CHECK_THAT(diagnose(records, timeout_s), StartsWith("watchdog: rank 1 has not called collective 9 of tp"));
}

TEST_CASE("diagnose: a rank in a collective of another group, and the ranks that wait for it")
{
  std::vector<FlightRecord> records = four_that_wait();
  records[1] = between();
  records[1].tracks.push_back(track({waiting(1)}, "pair", {0, 1}));
  CHECK(first_line(diagnose(records, timeout_s)) ==
        "watchdog: rank 1 calls all-reduce (ring) of 1,024 f32 (step.cpp:40) of pair, but ranks 0, 2 and 3 call "
        "all-reduce (ring) of 1,024 f32 (step.cpp:40) of world: the groups differ, or the order of the calls.");
}

TEST_CASE("diagnose: a message that no rank sends")
{
  std::vector<FlightRecord> records = four_that_wait();
  records[1] = between();
  records[1].tracks[0].transfers = {{.sends = false,
                                     .peer = 3,
                                     .bytes = 4096,
                                     .label = "",
                                     .where = "stage.cpp:12",
                                     .waited_for = true,
                                     .since_s = 3.2,
                                     .still_s = 3.2}};
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             StartsWith("watchdog: rank 1 waits for a message that rank 3 does not send, 4,096 bytes from rank 3 "
                        "(stage.cpp:12): rank 3 waits in collective 17 of world"));
  records[0] = records[2] = records[3] = between();
  records[3].finished = true;
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             StartsWith("watchdog: rank 1 waits for a message that rank 3 does not send, 4,096 bytes from rank 3 "
                        "(stage.cpp:12): rank 3, which has ended"));
  records[1].tracks[0].transfers[0].sends = true;
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             Contains("that rank 3 does not receive, 4,096 bytes to rank 3 (stage.cpp:12)"));
  records[1].tracks[0].transfers[0].label = "backward of micro-batch 2 in stage 1";
  const std::string what = "4,096 bytes to rank 3 for \"backward of micro-batch 2 in stage 1\" (stage.cpp:12)";
  CHECK_THAT(first_line(diagnose(records, timeout_s)), Contains(what));
  CHECK_THAT(diagnose(records, timeout_s), Contains("\n  rank 1 waits for " + what));
}

TEST_CASE("diagnose: a message that was never waited for")
{
  std::vector<FlightRecord> records = four_that_wait();
  records[1].tracks[0] = track({ended(17)});
  records[1].tracks[0].transfers = {
      {.sends = true, .peer = 2, .bytes = 4096, .label = "", .where = "ring.cpp:12", .collective = 17}};
  CHECK_THAT(
      diagnose(records, timeout_s),
      StartsWith(
          "watchdog: rank 1 left collective 17 of world without waiting for one of its messages, 4,096 bytes "
          "to rank 2 (ring.cpp:12)."));
}

TEST_CASE("diagnose: a handle that was never waited for, while collectives continue")
{
  std::vector<FlightRecord> records = four_that_wait();
  for (FlightRecord& record : records) call_of(record).still_s = 0.01;
  records[1].handles = {{"bucket 3", "ddp.cpp:77", 3.0}};
  const std::string text = diagnose(records, timeout_s);
  CHECK(first_line(text) ==
        "watchdog: rank 1 has not waited for bucket 3 (ddp.cpp:77), which it started 3.0 s ago.");
  // A hang is reported first.
  records[2] = between();
  for (FlightRecord& record : records)
    if (record.tracks[0].open_call() != nullptr) call_of(record).still_s = 3.1;
  CHECK_THAT(diagnose(records, timeout_s), StartsWith("watchdog: rank 2 has not called") &&
                                               Contains("\n         has not waited for bucket 3 (ddp.cpp:77)"));
}

TEST_CASE("diagnose: all ranks are in the same collective, and none makes progress")
{
  CHECK_THAT(diagnose(four_that_wait(), timeout_s),
             StartsWith("watchdog: all ranks are in collective 17 of world"));
}

TEST_CASE("diagnose: calls of MPI in the program itself, and the ranks that do not respond")
{
  std::vector<FlightRecord> records(3);
  for (FlightRecord& record : records) record.idle_s = 3.2;
  records[0].mpi_calls = {
      {.name = "MPI_Send", .peer = 1, .bytes = 4096, .where = "step() (step.cpp:12)", .since_s = 3.1}};
  records[1].phase = "has its turn";
  CHECK(first_line(diagnose(records, timeout_s)) ==
        "watchdog: rank 0 is in MPI_Send of 4,096 bytes to rank 1, called by step() (step.cpp:12), and rank 1 has "
        "its "
        "turn.");
  CHECK_THAT(diagnose(records, timeout_s), Contains("\n  Nothing has moved there for 3.2 s"));
  records[1].mpi_calls = records[0].mpi_calls;
  records[1].mpi_calls[0].peer = 0;
  CHECK_THAT(first_line(diagnose(records, timeout_s)),
             Contains("rank 0 is in MPI_Send of 4,096 bytes to rank 1") &&
                 Contains("and rank 1 has its turn: it is in MPI_Send of 4,096 bytes to rank 0"));
  // A rank that is missing in a collective is named sooner than one that is in a call as well.
  for (FlightRecord& record : records)
    record.mpi_calls = {{.name = "MPI_Barrier", .peer = -1, .where = "", .since_s = 3.1}};
  records[1].mpi_calls[0] = {.name = "MPI_Bcast", .peer = -1, .bytes = 4, .where = "", .since_s = 3.1};
  records[2].mpi_calls.clear();
  CHECK(first_line(diagnose(records, timeout_s)) ==
        "watchdog: rank 0 is in MPI_Barrier, and rank 2 is in no collective; it never called a collective.");
  records[2].mpi_calls = records[0].mpi_calls;
  CHECK(first_line(diagnose(records, timeout_s)) ==
        "watchdog: rank 0 is in MPI_Barrier, and rank 1 has its turn: it is in MPI_Bcast of 4 bytes, for 3.1 s.");
}

TEST_CASE("diagnose: no rank waits")
{
  std::vector<FlightRecord> records(2);
  for (FlightRecord& record : records) record.idle_s = 3.2;
  records[0].phase = "waits for its turn";
  records[1].span = "searching (search.cpp:7)";
  CHECK(diagnose(records, timeout_s) ==
        "watchdog: no rank finishes a kernel, a block of a file or a message any more.\n"
        "  Nothing has moved there for 3.2 s (--timeout=3); the job ends with status 86.\n"
        "  rank 0 waits for its turn\n"
        "  rank 1 is in no collective; it never called a collective; it is at searching (search.cpp:7)");
}

TEST_CASE("diagnose: prints a line per rank, and the source line at which the ranks diverged")
{
  std::vector<FlightRecord> records = four_that_wait();
  records[2] = between();
  records[2].tracks[0].last[1].where = "step.cpp:55";
  const std::string text = diagnose(records, timeout_s);
  CHECK_THAT(text, Contains("\n  Nothing has moved there for 3.1 s (--timeout=3); the job ends with status 86.\n"));
  CHECK_THAT(text, Contains("\n  note: collective 16 of world was called by ranks 0, 1 and 3 at step.cpp:40 and by "
                            "rank 2 at step.cpp:55\n"));
  CHECK_THAT(text,
             Contains("\n  rank 0 waits in collective 17 of world: all-reduce (ring) of 1,024 f32 (step.cpp:40), "
                      "for 3.1 s\n"));
  CHECK_THAT(
      text,
      Contains("\n  rank 2 is in no collective; its last was collective 16 of world: all-reduce (ring) of 1,024 "
               "f32 (step.cpp:55), ended 3.1 s ago\n"));
  CHECK(text.back() != '\n');
}

TEST_CASE("FlightRecord: is the same after serialising and parsing")
{
  FlightRecord record = four_that_wait()[0];
  record.span = "backward \"x\" (model.cpp:7)";
  record.tracks[0].transfers = {
      {.sends = true, .peer = 2, .bytes = 5, .label = "", .where = "a:1", .collective = 17}};
  record.handles = {{"bucket 3", "ddp.cpp:77", 3.0}};
  record.mpi_calls = {{.name = "MPI_Recv", .peer = 3, .bytes = 8, .code = 77, .where = "f()", .since_s = 1}};
  record.phase = "has its turn";
  record.idle_s = 2.5;
  record.tracks[0].last[0].label = "h.2.mlp";
  record.tracks[0].transfers[0].label = "rows";
  const FlightRecord back = flight_record_from(to_text(record));
  CHECK(to_text(back) == to_text(record));
  CHECK(back.tracks[0].last[0].label == "h.2.mlp");
  CHECK(back.tracks[0].last[1].open());
  CHECK(back.tracks[0].transfers[0].label == "rows");
  CHECK_THROWS_WITH(flight_record_from("{}"), Contains("cannot be read"));
  CHECK_THROWS_WITH(flight_record_from("nonsense"), Contains("cannot be read"));
}
