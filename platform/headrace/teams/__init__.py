"""Users, teams, memberships and roles, API tokens, the audit trail."""
