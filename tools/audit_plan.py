"""Door to `facerec audit-plan`."""

from facerec.commands.audit_plan import main

if __name__ == "__main__":
    main()
