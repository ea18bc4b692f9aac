#pragma once
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/object_store/session_head.h"
#include "server/request/session_command.h"
#include "server/request/state_transfer.h"

namespace recurve {

// What the record of a session's head says: SessionHead::record, a JSON object. Of form 1, which
// has no marks, and no state where nothing was absorbed:
//
//   {"position", "answer_is_blob", "parent"}, of which the last may be missing: the first blob is
//   the state, if position is not 0, and the last one the answer, if it is a blob
//
// Of form 2, with the members of form 1 and
//
//   "state", "answer": which blobs they are, -1: none; "marked"; "marks": {name: [position, state]}
//
// Of form 3, of a state that grows, with the members of form 2 and
//
//   "groups": [[blob, before, end, level, id, checksum]], page groups (server/state/state_form.h),
//   of which the last two are a string of digits and 16 hexadecimal digits; "group": which of them
//   has the last full pages of the state, -1: the state has its pages; "marks": {name: [position,
//   state, group]}
//
// Of form 4, of a session that stores tokens, with the members of form 3 and
//
//   "rewind_tokens", of how many tokens ids are stored with each state, and "tokens_from", the
//   position of the first of them; "marks": {name: [position, state, group, tokens_from]}
struct HeadRecord {
  // A page group.
  struct Group {
    int blob = -1;
    int before = -1;  // which of the groups has the pages before; -1: it begins with page 0
    int64_t end = 0;  // pages of it and of those before it
    int level = 0;    // how often its pages were written again, at most
    PageGroupRef ref = {};
  };
  struct Mark {
    int64_t position = 0;
    int state = -1, group = -1;
    int64_t tokens_from = 0;
  };
  int64_t position = 0;     // tokens absorbed
  int state = -1;           // which of the head's blobs; -1: none, it is empty
  int group = -1;           // which group has its last full pages; -1: they are with the state
  int answer = -1;          // the last answer; -1: it is not a blob
  std::string parent = {};  // the session that it was forked from; empty: none
  uint64_t marked = 0;      // commits that changed marks only
  std::map<std::string, Mark> marks = {};
  std::vector<Group> groups = {};              // each behind the one before it
  int64_t rewind_tokens = 0, tokens_from = 0;  // see SessionInfo

  Mark at() const { return {position, state, group, tokens_from}; }
  HeadForm form() const {
    if (rewind_tokens > 0) return HeadForm::k4;
    if (!groups.empty()) return HeadForm::k3;
    const bool plain = marks.empty() && marked == 0 && (position > 0) == (state >= 0);
    return plain ? HeadForm::k1 : HeadForm::k2;
  }
};

class BadHeadRecord : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The most marks of a session, and the most page groups, whose names and blobs fit in a head.
inline constexpr size_t kMostMarks = 1000, kMostGroups = 512;

std::string to_text(const HeadRecord& record);
// Throws BadHeadRecord with a sentence if it is damaged or names blobs that the head does not have.
HeadRecord record_of(const SessionHead& head);
// The blobs of the head that the record refers to, which refers to these afterwards.
std::vector<RemoteBlob> used_blobs(const SessionHead& head, HeadRecord* record);

// The groups that end with that one, in the order of their pages.
std::vector<HeadRecord::Group> chain_of(const HeadRecord& record, int group);
// Of a state in the store: what its blobs have together.
uint64_t bytes_of(const SessionHead& head, const HeadRecord& record, const HeadRecord::Mark& at);
// Which pages a turn writes: the new ones, and with them those of the last groups again once there
// are kGroupsOfALevel of a level, so that few groups have all of them and each is written seldom.
struct NewPages {
  int64_t first = 0;
  int before = -1;  // the group with the pages before
  int level = 0;
};
inline constexpr int kGroupsOfALevel = 16;
// group: of the state that the turn began with.
NewPages new_pages(const HeadRecord& record, int group);

// The number of changes that clients see: the first commit is the session's creation.
uint64_t epoch_of(const SessionHead& head, const HeadRecord& record);
CommitInfo commit_of(const SessionHead& head, int64_t position);
// What is known of a session without its state. Throws like record_of().
SessionInfo info_of(const SessionHead& head);

}  // namespace recurve
