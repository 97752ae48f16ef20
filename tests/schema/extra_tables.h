// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables that the product does not have, for what is made from its lists: events with times, events about these, and a
// dictionary. Included before everything else.
#define GPUSCOPE_NOTE(X)                                              \
  X(int64_t, start_ns, time, "when it was written")                   \
  X(uint32_t, region, optional(row(Regions)), "where it was written") \
  X(uint32_t, says, text, "what it says")                             \
  X(uint32_t, language, optional(text), "the language that it is in") \
  X(uint16_t, shelf, row(Shelves), "where it is kept")                \
  X(uint16_t, thread, row(Threads), "the thread that wrote it")       \
  X(uint8_t, kind, values<MemoryKind>, "the memory that it lies in")
#define GPUSCOPE_NOTE_PAGE(X)                         \
  X(uint32_t, note, owner(row(Notes)), "its note")    \
  X(uint64_t, words, number, "how many words it has") \
  X(uint32_t, follows, optional(row(NotePages)), "the page before it")
#define GPUSCOPE_SHELF(X)                          \
  X(uint32_t, name, text, "what is written on it") \
  X(uint32_t, above, optional(row(Shelves)), "the shelf above it")

#define GPUSCOPE_EXTRA_TABLES(X)                                                    \
  X(Notes, note, GPUSCOPE_NOTE, Event, notes, "Notes that were written.")           \
  X(NotePages, note_page, GPUSCOPE_NOTE_PAGE, Event, note_pages, "Pages of notes.") \
  X(Shelves, shelf, GPUSCOPE_SHELF, Dictionary, shelves, "Where notes are kept.")
