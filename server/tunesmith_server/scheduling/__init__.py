"""Which job a worker gets next, what a project may use, and what it has used. Services call this
package; it changes no job's state."""
